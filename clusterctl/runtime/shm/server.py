"""The pserver's end of shared memory: shares the values of its dense tables, and maps the regions of trainers.

A trainer on the same host finds the pserver's unix socket, in the abstract namespace of their network, by the name in
the reply to its hello, and sends the token in that reply, which is for its rank; other users are refused. A trainer can
read whole tables, and writes to regions of its own, numbered by it.

Consistency: in sync mode the values of a step stay unchanged until every trainer has pushed the step after next, so no
trainer reads a torn step. In the other modes values change in place while they are read: each number is whole, but the
numbers of one table may be from before and after another trainer's push.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import socket
import threading
import time
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.shm import region as memory
from clusterctl.runtime.shm.region import LEAST_BYTES, MOST_REGIONS, REGION_SHIFT, Bytes
from clusterctl.runtime.wire import messages as wire

_OFFSET = 2**REGION_SHIFT - 1
_PAGE = 4_096
_HELLO_S = 10.0
_RETRY_S = 0.1


class ShmServer:
    """The unix socket of one pserver and the memory shared over it. Its threads end with the process or `close`."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self.name = f"clusterctl-{os.getpid()}-{secrets.token_hex(8)}"
        self._tables: dict[tuple[int, int], tuple[int, Bytes]] = {}
        self._regions: dict[int, dict[int, Bytes]] = {}
        self._seen: dict[int, set[tuple[int, int]]] = {}
        self._connections: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="clusterctl-sharing", daemon=True).start()

    def greeting(self, rank: int) -> dict[str, Any]:
        """Return the facts that a trainer needs to connect; they must reach that trainer only."""
        return {"name": self.name, "token": self._token(rank)}

    def _token(self, rank: int) -> str:
        return hmac.digest(self._secret, str(rank).encode(), "sha256").hex()

    def allocate(self, lane: int, key: int, count: int) -> tuple[Floats, Floats]:
        """Return two float32 buffers for the values of a table, in one shared region unless they are small."""
        if 4 * count < LEAST_BYTES:
            return np.empty(count, np.float32), np.empty(count, np.float32)
        stride = -(-count * 4 // _PAGE) * _PAGE
        fd, data = memory.make_region(2 * stride, only_mine=True)
        self._tables[lane, key] = (fd, data)
        first, second = (data[at : at + 4 * count].view(np.float32) for at in (0, stride))
        return first, second

    def position(self, rank: int, lane: int, key: int, values: Floats) -> int | None:
        """Return the position of `values`, a view of a table's buffers; None if trainer `rank` has not mapped them."""
        if (lane, key) not in self._seen.get(rank, ()):
            return None
        return _address(values) - _address(self._tables[lane, key][1])

    def view_of(self, rank: int) -> wire.Shared:
        """Return the function that reads positions in a trainer's messages: `number << 40 | offset` of its regions."""
        regions = self._regions.setdefault(rank, {})

        def find(table: int, position: int, size: int) -> memoryview:
            region, offset = regions.get(position >> REGION_SHIFT), position & _OFFSET
            if region is None or offset % 8 or offset + size > len(region):
                raise WireError("a part has a position in shared memory that does not exist")
            return region[offset : offset + size].data

        return find

    def room(self, rank: int, position: int, size: int) -> Bytes | None:
        """Return writable bytes in a region of a trainer, for rows that it requested there; None if there are none."""
        region, offset = self._regions.get(rank, {}).get(position >> REGION_SHIFT), position & _OFFSET
        if region is None or offset % 8 or offset + size > len(region):
            return None
        return region[offset : offset + size]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for fd, _ in self._tables.values():
            os.close(fd)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as exc:
                if exc.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                time.sleep(_RETRY_S)
                continue
            thread = threading.Thread(target=self._serve, args=(sock,), name="clusterctl-share", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit on memory or processes: the trainer goes on without shared memory
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError), sock:
            if not memory.is_of_our_user(sock):
                return
            sock.settimeout(_HELLO_S)
            hello, fd = memory.receive(sock)
            rank = int(hello["rank"])
            if fd is not None or not hmac.compare_digest(str(hello["token"]).encode(), self._token(rank).encode()):
                return
            sock.settimeout(None)
            self._forget(rank)
            self._connections[rank] = sock
            memory.send(sock, {"ok": True})
            try:
                self._converse(sock, rank)
            finally:
                if self._connections.get(rank) is sock:
                    self._forget(rank)

    def _forget(self, rank: int) -> None:
        """Forget a trainer's regions and mappings; gradients that still wait keep the memory that they are in."""
        self._regions.setdefault(rank, {}).clear()
        self._seen[rank] = set()

    def _converse(self, sock: socket.socket, rank: int) -> None:
        while True:
            request, fd = memory.receive(sock)
            try:
                self._answer(sock, rank, request, fd)
            finally:
                if fd is not None:
                    os.close(fd)

    def _answer(self, sock: socket.socket, rank: int, request: dict[str, Any], fd: int | None) -> None:
        if fd is not None:
            regions = self._regions[rank]
            if len(regions) >= MOST_REGIONS:
                raise ValueError("too many regions")
            regions[int(request["region"])] = memory.map_region(fd, int(request["size"]), writable=True)
            memory.send(sock, {"ok": True})
            return
        key = (int(request["lane"]), int(request["table"]))
        shared = self._tables.get(key)
        if shared is None:
            memory.send(sock, {"size": 0})
        else:
            memory.send(sock, {"size": len(shared[1])}, shared[0])
            self._seen[rank].add(key)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
