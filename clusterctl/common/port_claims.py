"""Ports that jobs of this machine have chosen: so that two of them never choose the same one.

To bind a port says little. Servers bind with SO_REUSEADDR, so that they can come back at once, and then share a port
with whoever has bound it and does not listen yet. A name in Linux's abstract namespace belongs to one process, and goes
with it.
"""

from __future__ import annotations

import socket


def claim(port: int) -> socket.socket | None:
    """What holds the claim as long as it is open; None when another process has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0clusterctl-port-{port}")
    except OSError:
        sock.close()
        return None
    return sock


def is_claimed(port: int) -> bool:
    """Whether a process has the claim now."""
    claimed = claim(port)
    if claimed is not None:
        claimed.close()
    return claimed is None
