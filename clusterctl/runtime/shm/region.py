"""Memory regions shared by two processes of one host: a memfd, passed over a unix socket, freed with its last user.

A region is sealed against resizing, so that a process that maps it cannot be killed by SIGBUS. Linux only; elsewhere
`is_available()` is False and everything goes over TCP.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterctl.common.safe_json import parse

_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1, 2, 4, 16
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_MOST_BYTES = 4_096

#: A position in a message: the region's number in the high bits, the offset in it in the low bits.
REGION_SHIFT = 40
MOST_REGIONS = 4_096
#: Smaller arrays are sent in messages.
LEAST_BYTES = 65_536 * 4

Bytes = npt.NDArray[np.uint8]


def is_available() -> bool:
    return hasattr(os, "memfd_create")


def make_region(size: int, only_mine: bool = False) -> tuple[int, Bytes]:
    """Make a region. Return its descriptor, which the caller must close, and its bytes, zero and writable.

    With `only_mine`, other processes that get the descriptor can only read it (since Linux 5.1).
    """
    fd = os.memfd_create("clusterctl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        data = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        if only_mine:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, _ADD_SEALS, _SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
        return fd, data
    except BaseException:
        os.close(fd)
        raise


def map_region(fd: int, size: int, writable: bool) -> Bytes:
    """Map a region that another process made. Raises OSError or ValueError if its size or seals are wrong."""
    if os.fstat(fd).st_size != size or not fcntl.fcntl(fd, _GET_SEALS) & _SEAL_SHRINK:
        raise ValueError("a region of shared memory has the wrong size, or could shrink")
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return np.frombuffer(mmap.mmap(fd, size, access=access), np.uint8)


def is_of_our_user(sock: socket.socket) -> bool:
    """Return True if the process at the other end of a unix socket runs as this user."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())


def send(sock: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    """Send one message, of less than 4 KB, optionally with a descriptor."""
    data = json.dumps(message).encode()
    fds = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([len(data).to_bytes(2, "little") + data], fds)


def receive(sock: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Receive the next message and descriptor, which the caller must close. Raises OSError or ValueError."""
    head, ancillary, _, _ = sock.recvmsg(2, socket.CMSG_LEN(4 * 4), socket.MSG_WAITALL)
    fds = [fd for level, kind, data in ancillary if (level, kind) == _RIGHTS for fd in _numbers(data)]
    try:
        size = int.from_bytes(head, "little")
        data = sock.recv(size, socket.MSG_WAITALL) if len(head) == 2 and size <= _MOST_BYTES else b""
        if len(data) != size or not data:
            raise ConnectionError("the other end is gone")
        message = parse(data)
        if not isinstance(message, dict) or len(fds) > 1:
            raise ValueError("not a message")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds[0] if fds else None


def _numbers(data: bytes) -> list[int]:
    numbers = array.array("i")
    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return numbers.tolist()
