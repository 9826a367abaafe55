"""TCP connections of streams between hosts."""

from __future__ import annotations

import contextlib
import socket

from clusterctl.common.port_claims import claim
from clusterctl.runtime.wire.sockets import PORTS_TRIED

_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3  # as for ZeroMQ


def open_listener(port: int, address: str = "") -> socket.socket | None:
    """Return a socket that listens at a free port of the upper half of those from `port`; None if there is none.

    Lanes take the ports from `port` up, so that those of streams do not move them. It listens on all addresses, on IPv6
    too if this process's `address` is IPv6.
    """
    for candidate in range(port + PORTS_TRIED // 2, min(port + PORTS_TRIED, 65_536)):
        claimed = claim(candidate)
        if claimed is None:
            continue
        with claimed:  # once it listens, nobody else can take the port
            sock = _listener(candidate, with_ipv6=":" in address)
        if sock is not None:
            return sock
    return None


def begin_to_connect(host: str, port: int) -> socket.socket:
    """Return a socket that is being connected. Raises OSError."""
    family, kind, number, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Let a socket send at once, and notice a peer that is gone without a word. A unix socket stays as it is."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _listener(port: int, with_ipv6: bool) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET6 if with_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if with_ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::" if with_ipv6 else "0.0.0.0", port))
        sock.listen()
    except OSError:
        sock.close()
        return None
    return sock
