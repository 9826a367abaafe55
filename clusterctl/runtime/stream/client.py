"""A trainer's end of a stream: opens it beside the connection over ZeroMQ, without waiting for it."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from typing import Any

from clusterctl.common.port_claims import uid_of_peer
from clusterctl.runtime.stream import tcp
from clusterctl.runtime.stream.framed import AT_ONCE, Stream
from clusterctl.runtime.stream.tokens import ANSWER_BYTES, answer_to, greeting


class Opening:
    """A stream that is being opened. Call `advance` when its socket can be read or, until `is_sent`, written to."""

    def __init__(self, sock: socket.socket, rank: int, token: bytes, until_s: float) -> None:
        self._sock = sock
        self.until_s = until_s
        self.is_sent = False
        self._rank = rank
        self._token = token
        self._heard = b""

    def advance(self, wait_s: float) -> Stream | None:
        """Return the stream once the lane has accepted it, None until then. Raises OSError if it cannot be opened.

        `wait_s` is how long reads of the stream wait at most if they are to wait.
        """
        if not self.is_sent:
            with contextlib.suppress(BlockingIOError):  # not connected yet
                self._sock.send(greeting(self._rank, self._token), AT_ONCE)
                self.is_sent = True
            return None
        with contextlib.suppress(BlockingIOError):
            heard = self._sock.recv(ANSWER_BYTES - len(self._heard), AT_ONCE)
            self._heard += heard
            if not heard or len(self._heard) == ANSWER_BYTES:
                return self._accepted(wait_s)
        return None

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def _accepted(self, wait_s: float) -> Stream:
        if not hmac.compare_digest(self._heard, answer_to(self._token)):
            raise ConnectionError("the lane refused the stream")
        seconds, rest = divmod(wait_s, 1.0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        tcp.tune(self._sock)
        return Stream(self._sock, self._rank)


def open_stream(offer: Any, host: str, rank: int, until_s: float) -> Opening | None:
    """Begin to open the stream that a lane offers; None if there is no way to it."""
    try:
        token = bytes.fromhex(offer["token"])
        name, port = offer.get("name"), offer.get("port")
        sock = None if name is None else _connect_here(str(name))
        if sock is None and port is not None and 0 < int(port) < 65_536:
            sock = tcp.begin_to_connect(host, int(port))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, OverflowError):
        return None
    return None if sock is None else Opening(sock, rank, token, until_s)


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
