"""Claims of ports by the jobs of this machine, so that two of them never choose the same one.

Binding a port is not enough. Servers bind with SO_REUSEADDR to restart quickly, and may then share a port with another
process that has bound it but does not listen yet. A name in Linux's abstract namespace belongs to one process, and is
freed when the process exits.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

PREFIX = "clusterctl-port-"
PORTS_COMPARED = 64  # from PORT, to find one that is free on all nodes


def claimed_ports() -> list[int]:
    """Return the ports that any job of this machine has claimed, in ascending order."""
    try:
        with Path("/proc/net/unix").open(errors="replace") as file:
            names = [line.rstrip("\n").rpartition(f" @{PREFIX}")[2] for line in file]
    except OSError:
        return []
    return sorted({int(name) for name in names if name.isdecimal()})


def claim(port: int) -> socket.socket | None:
    """Return a socket that holds the claim while it is open; None if another process holds it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{PREFIX}{port}")
    except OSError:
        sock.close()
        return None
    return sock


def is_claimed(port: int) -> bool:
    """Return True if a process holds the claim now."""
    claimed = claim(port)
    if claimed is not None:
        claimed.close()
    return claimed is None


def uid_of_peer(sock: socket.socket) -> int:
    """Return the account of the process at the other end of a connected unix socket."""
    pid_uid_gid = struct.Struct("iII")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, pid_uid_gid.size)
    return int(pid_uid_gid.unpack(credentials)[1])
