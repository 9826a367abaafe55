"""Memory shared with the pservers of this host, lane by lane. `shm.client` is the connection to one pserver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from clusterctl.runtime.shm.client import ShmClient, Slot, connect_shm
from clusterctl.runtime.shm.region import LEAST_BYTES
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.packing import LanePush
from clusterctl.runtime.wire import messages as wire


class SlotLease(NamedTuple):
    """Memory that a lane can read, leased for one request."""

    client: ShmClient
    slot: Slot

    @property
    def position(self) -> int:
        return self.slot.position

    def put(self, part: wire.Part) -> wire.Part:
        """Copy a part's bytes into this memory; return the part that refers to them."""
        self.slot.data[: part.array.nbytes] = part.array.reshape(-1).view(np.uint8)
        return part._replace(position=self.position)

    def release(self) -> None:
        self.client.release(self.slot)


class LaneMemory:
    """The lanes that share memory with this trainer. `facts` are the replies to the hello, by lane.

    Lanes of other hosts share nothing, and with `half` no lane does.
    """

    def __init__(self, link: Link, facts: Mapping[int, Mapping[str, Any]], rank: int, half: bool) -> None:
        self.clients: dict[int, ShmClient] = {}
        each = link.layout.per_pserver
        for first in [] if half else range(0, link.layout.lanes, each):
            client = connect_shm(facts[first].get("shared"), rank)
            if client is not None:
                self.clients.update(dict.fromkeys(range(first, first + each), client))
        for lane, client in self.clients.items():
            link.share(lane, partial(client.find, lane))

    def map_table(self, lanes: Iterable[int], table: int) -> None:
        """Map a dense table's values of lanes on this host."""
        for lane in lanes:
            client = self.clients.get(lane)
            if client is not None:
                client.map_table(lane, table)

    def lease_for(self, lane: int, size: int) -> SlotLease | None:
        """Lease memory for `size` bytes that a lane can read; None if it is on another host, or `size` is small."""
        client = self.clients.get(lane)
        slot = None if client is None or size < LEAST_BYTES else client.acquire(size)
        return None if client is None or slot is None else SlotLease(client, slot)

    def put_rows(self, leases: list[SlotLease], lane: int, out: LanePush) -> None:
        """Copy the rows of a push to where the lane can read them; append the leases to `leases`."""
        if lane not in self.clients:
            return
        put: dict[int, wire.Part] = {}
        for part in out.opening:
            lease = self.lease_for(lane, part.array.nbytes) if part.kind == wire.ROWS else None
            if lease is not None:
                leases.append(lease)
                put[id(part)] = lease.put(part)
        out.full = None if out.full is None else [put.get(id(part), part) for part in out.full]
        out.opening = [put.get(id(part), part) for part in out.opening]

    def close(self) -> None:
        for client in set(self.clients.values()):
            client.close()
