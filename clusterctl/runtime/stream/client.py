"""A trainer's end of a stream: opens it beside the connection over ZeroMQ, without waiting for it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Callable

from clusterctl.common.port_claims import uid_of_peer
from clusterctl.runtime.stream import tcp
from clusterctl.runtime.stream.opening import Opening

if TYPE_CHECKING:
    import ssl


def open_stream(
    offer: Any, host: str, rank: int, until_s: float, secure: Callable[[], ssl.SSLContext | None] | None = None
) -> Opening | None:
    """Begin to open the stream that a lane offers; None if there is no way to it.

    With `secure`, which returns the context for TLS, a stream to another host has to use it.
    """
    try:
        token, name, port = bytes.fromhex(offer["token"]), offer.get("name"), offer.get("port")
        sock = None if name is None else _connect_here(str(name))
        if sock is not None:
            return Opening(sock, rank, token, until_s)
        if port is None or not 0 < int(port) < 65_536:
            return None
        if offer.get("certificate") is None:
            return None if secure else Opening(tcp.begin_to_connect(host, int(port)), rank, token, until_s)
        context = secure() if secure else None
        if context is not None:
            from clusterctl.runtime.stream.tls import TlsOpening  # `ssl` takes 5 ms to import

            sock = tcp.begin_to_connect(host, int(port))
            return TlsOpening(sock, rank, token, until_s, context, str(offer["certificate"]))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, OverflowError):
        pass
    return None


def _connect_here(name: str) -> socket.socket | None:
    """Connect to a process of this host and account."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(f"\0{name}")
        if uid_of_peer(sock) == os.geteuid():  # the pserver may be on another host, and the name taken by any user here
            return sock
    except OSError:
        pass
    sock.close()
    return None
