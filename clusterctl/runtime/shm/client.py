"""The trainer's end of shared memory: maps the values that a pserver shares, and shares regions of its own."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, NamedTuple

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.shm import region
from clusterctl.runtime.shm.region import MOST_REGIONS, REGION_SHIFT, Bytes

_ANSWER_S = 10.0


class Slot(NamedTuple):
    """A region of this trainer that one pserver has mapped. `position` identifies it in messages."""

    number: int
    data: Bytes

    @property
    def position(self) -> int:
        return self.number << REGION_SHIFT


class ShmClient:
    """The connection to one pserver on this host. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._values: dict[tuple[int, int], Bytes | None] = {}
        self._free: dict[int, list[Slot]] = {}
        self._slots: dict[int, Slot] = {}

    def map_table(self, lane: int, table: int) -> bool:
        """Map a table's values; return False if they are not in shared memory."""
        if (lane, table) not in self._values:
            answer, fd = self._ask({"lane": lane, "table": table})
            self._values[lane, table] = None
            if fd is not None:
                self._values[lane, table] = region.map_region(fd, int(answer["size"]), writable=False)
                os.close(fd)
        return self._values[lane, table] is not None

    def find(self, lane: int, table: int, position: int, size: int) -> memoryview:
        """Return bytes of a table's values, or of this trainer's own regions; for `wire.decode`."""
        slot = self._slots.get(position >> REGION_SHIFT)
        data = self._values.get((lane, table)) if slot is None else slot.data
        position &= 2**REGION_SHIFT - 1
        if data is None or position + size > len(data):
            raise WireError("a part has a position in shared memory that does not exist")
        return data[position : position + size].data

    def acquire(self, size: int) -> Slot | None:
        """Acquire a slot of at least `size` bytes; release it when the pserver is done. None if there are too many."""
        room = max(1 << 16, 1 << (size - 1).bit_length())
        free = self._free.setdefault(room, [])
        if free:
            return free.pop()
        return self._make_slot(room) if len(self._slots) < MOST_REGIONS else None

    def release(self, slot: Slot) -> None:
        self._free[len(slot.data)].append(slot)

    def close(self) -> None:
        self._sock.close()

    def _make_slot(self, size: int) -> Slot:
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
    """Connect to the pserver of a greeting; None unless it is a process of this host and user."""
    if greeting is None or not region.is_available():
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_ANSWER_S)
    with contextlib.suppress(OSError, ValueError):
        sock.connect(f"\0{greeting['name']}")
        if region.is_of_our_user(sock):  # the pserver may be on another host, and the name taken by any user here
            region.send(sock, {"token": greeting["token"], "rank": rank})
            region.receive(sock)
            return ShmClient(sock)
    sock.close()
    return None
