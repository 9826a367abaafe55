"""A trainer's end of a stream: opens it beside the connection over ZeroMQ, without waiting for it."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from typing import Any

from clusterctl.common.port_claims import uid_of_peer
from clusterctl.runtime.stream import sealed, tcp
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.tokens import ANSWER_BYTES, SEALED, answer_to, greeting


class PendingStream:
    """A stream that is being opened. Call `advance` when it can be read or, until `is_connected`, written to.

    It will be sealed if its `sealed_lane` is given.
    """

    def __init__(
        self, sock: socket.socket, rank: int, token: bytes, until_s: float, sealed_lane: int | None = None
    ) -> None:
        self.until_s = until_s
        self.is_connected = False
        self._sock = sock
        self._descriptor = sock.fileno()
        self._rank = rank
        self._token = token
        self._sealed_lane = sealed_lane
        self._heard = b""

    def advance(self, wait_s: float) -> Stream | None:
        """Return the stream once the lane has accepted it, None until then. Raises OSError if it cannot be opened.

        `wait_s` is how long reads of the stream wait at most if they are to wait.
        """
        with contextlib.suppress(BlockingIOError):
            if not self.is_connected:
                self._sock.send(greeting(self._rank, self._token))
                self.is_connected = True
            if self._greet():
                return self._make(wait_s)
        return None

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._sock.close()

    def _greet(self) -> bool:
        """Return True once the lane has answered. Raises BlockingIOError if it has not, and OSError if wrongly."""
        while len(self._heard) < ANSWER_BYTES:
            heard = self._sock.recv(ANSWER_BYTES - len(self._heard))
            if not heard:
                raise ConnectionError("the lane refused the stream")
            self._heard += heard
        if not hmac.compare_digest(self._heard, answer_to(self._token)):
            raise ConnectionError("this is not the lane")
        return True

    def _make(self, wait_s: float) -> Stream:
        seconds, rest = divmod(wait_s, 1.0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        tcp.tune(self._sock)
        if self._sealed_lane is not None:
            return sealed.SealedStream(self._sock, self._rank, self._sealed_lane, self._token, is_lane=False)
        return Stream(self._sock, self._rank)


def open_stream(
    offer: Any, host: str, rank: int, lane: int, until_s: float, *, secure: bool = False
) -> PendingStream | None:
    """Begin to open the stream that a lane offers; None if there is no way to it.

    In a run that is `secure`, a stream to another host has to be sealed, in the version of this end.
    """
    try:
        token, name, port = bytes.fromhex(offer["token"]), offer.get("name"), offer.get("port")
        sock = None if name is None else _connect_here(str(name))
        if sock is not None:
            return PendingStream(sock, rank, token, until_s)
        if port is None or not 0 < int(port) < 65_536 or offer.get("sealed") != (SEALED if secure else None):
            return None
        if secure and sealed.load() is None:
            return None
        return PendingStream(tcp.begin_to_connect(host, int(port)), rank, token, until_s, lane if secure else None)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, OverflowError):
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
