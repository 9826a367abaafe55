"""What a trainer shares with the pservers of its host, lane by lane. One pserver is in `borrowing`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from clusterctl.runtime.shm.client import Borrowing, Slot, find_lender
from clusterctl.runtime.shm.region import LEAST_BYTES
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.packing import Outgoing
from clusterctl.runtime.wire import messages as wire


@dataclass(frozen=True)
class Room:
    """Memory that a lane sees, lent for one request."""

    lender: Borrowing
    slot: Slot

    @property
    def position(self) -> int:
        return self.slot.position

    def put(self, part: wire.Part) -> wire.Part:
        """The part with its bytes in this memory."""
        self.slot.data[: part.array.nbytes] = part.array.reshape(-1).view(np.uint8)
        return part._replace(position=self.position)

    def give_back(self) -> None:
        self.lender.give(self.slot)


class SharedMemory:
    """`facts` are the answers to the hello, by lane. Lanes of other hosts share nothing, nor does any with `half`."""

    def __init__(self, link: Link, facts: Mapping[int, Mapping[str, Any]], rank: int, half: bool) -> None:
        self.lenders: dict[int, Borrowing] = {}
        each = link.layout.per_pserver
        for first in [] if half else range(0, link.layout.lanes, each):
            lender = find_lender(facts[first].get("shared"), rank)
            if lender is not None:
                self.lenders.update(dict.fromkeys(range(first, first + each), lender))
        for lane, lender in self.lenders.items():
            link.share(lane, partial(lender.find, lane))

    def borrow(self, lanes: Iterable[int], table: int) -> None:
        """Maps a dense table's values where its lanes are processes of this host."""
        for lane in lanes:
            lender = self.lenders.get(lane)
            if lender is not None:
                lender.borrow(lane, table)

    def room_for(self, lane: int, size: int) -> Room | None:
        """Memory for `size` bytes that a lane sees; None when it is not of this host, or it is not worth it."""
        lender = self.lenders.get(lane)
        slot = None if lender is None or size < LEAST_BYTES else lender.take(size)
        return None if lender is None or slot is None else Room(lender, slot)

    def lend_rows(self, rooms: list[Room], lane: int, out: Outgoing) -> None:
        """Puts the rows of a push where the lane sees them; adds to `rooms` what is lent until it is answered."""
        if lane not in self.lenders:
            return
        put: dict[int, wire.Part] = {}
        for part in out.opening:
            room = self.room_for(lane, part.array.nbytes) if part.kind == wire.ROWS else None
            if room is not None:
                rooms.append(room)
                put[id(part)] = room.put(part)
        out.full = None if out.full is None else [put.get(id(part), part) for part in out.full]
        out.opening = [put.get(id(part), part) for part in out.opening]

    def close(self) -> None:
        for lender in set(self.lenders.values()):
            lender.close()
