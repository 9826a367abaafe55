"""A stream that a trainer is opening."""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct

from clusterctl.runtime.stream import tcp
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.tokens import ANSWER_BYTES, answer_to, greeting


class Opening:
    """A stream that is being opened. Call `advance` when it can be read or, until `is_connected`, written to."""

    def __init__(self, sock: socket.socket, rank: int, token: bytes, until_s: float) -> None:
        self.until_s = until_s
        self.is_connected = False
        self._sock = sock
        self._descriptor = sock.fileno()
        self._rank = rank
        self._token = token
        self._heard = b""

    def advance(self, wait_s: float) -> Stream | None:
        """Return the stream once the lane has accepted it, None until then. Raises OSError if it cannot be opened.

        `wait_s` is how long reads of the stream wait at most if they are to wait.
        """
        with contextlib.suppress(BlockingIOError):
            if not self.is_connected:
                self._connect()
                self.is_connected = True
            if self._greet():
                return self._make(wait_s)
        return None

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._sock.close()

    def _connect(self) -> None:
        """Send the greeting. Raises BlockingIOError while there is no connection."""
        self._sock.send(greeting(self._rank, self._token))

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
        return Stream(self._sock, self._rank)
