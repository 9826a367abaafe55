"""Shared memory from the trainer's side: it maps the values that a pserver lends, and lends regions of its own."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import Any

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.shm import region
from clusterctl.runtime.shm.region import MOST_REGIONS, REGION_SHIFT, Bytes

_ANSWER_S = 10.0


@dataclass(frozen=True)
class Slot:
    """A region of this trainer that one pserver maps too. `position` is where a message says that it is."""

    number: int
    data: Bytes

    @property
    def position(self) -> int:
        return self.number << REGION_SHIFT


class ShmClient:
    """The connection to one pserver of this host. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._values: dict[tuple[int, int], Bytes | None] = {}
        self._free: dict[int, list[Slot]] = {}
        self._slots: dict[int, Slot] = {}

    def map_table(self, lane: int, table: int) -> bool:
        """Maps a table's values; False when they are not in shared memory."""
        if (lane, table) not in self._values:
            said, fd = self._ask({"lane": lane, "table": table})
            self._values[lane, table] = None
            if fd is not None:
                self._values[lane, table] = region.map_region(fd, int(said["size"]), writable=False)
                os.close(fd)
        return self._values[lane, table] is not None

    def find(self, lane: int, table: int, position: int, size: int) -> memoryview:
        """Bytes of a table's values, or of this trainer's own regions; for `wire.decode`."""
        slot = self._slots.get(position >> REGION_SHIFT)
        data = self._values.get((lane, table)) if slot is None else slot.data
        position &= 2**REGION_SHIFT - 1
        if data is None or position + size > len(data):
            raise WireError("a part is said to be at a place of shared memory that is not there")
        return data[position : position + size].data

    def acquire(self, size: int) -> Slot | None:
        """A slot of at least `size` bytes, to be given back when the pserver has done with it; None after too many."""
        room = max(1 << 16, 1 << (size - 1).bit_length())
        free = self._free.setdefault(room, [])
        if free:
            return free.pop()
        return self._lend(room) if len(self._slots) < MOST_REGIONS else None

    def release(self, slot: Slot) -> None:
        self._free[len(slot.data)].append(slot)

    def close(self) -> None:
        self._sock.close()

    def _lend(self, size: int) -> Slot:
        fd, data = region.make_region(size)
        try:
            number = len(self._slots) + 1
            self._ask({"region": number, "size": size}, fd)
        finally:
            os.close(fd)
        self._slots[number] = Slot(number, data)
        return self._slots[number]

    def _ask(self, request: dict[str, Any], fd: int | None = None) -> tuple[dict[str, Any], int | None]:
        region.send(self._sock, request, fd)
        return region.receive(self._sock)


def connect_shm(greeting: dict[str, Any] | None, rank: int) -> ShmClient | None:
    """The pserver that greeted so, if it is a process of this host and user; None otherwise."""
    if greeting is None or not region.is_available():
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_ANSWER_S)
    with contextlib.suppress(OSError, ValueError):
        sock.connect(f"\0{greeting['name']}")
        if region.is_of_our_user(sock):  # on another host anybody may have taken the name
            region.send(sock, {"token": greeting["token"], "rank": rank})
            region.receive(sock)
            return ShmClient(sock)
    sock.close()
    return None
