"""Authentication of trainers: the ZAP handler (RFC 27) that checks CURVE keys against the run's list.

An allowed key's name in the list, such as `trainer-0`, becomes the ZAP user id of all its messages. Any other key is
refused in the handshake: libzmq drops the connection, and its messages are never delivered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"


class CurveAuthenticator:
    """Answers libzmq's ZAP requests in a thread, from before the first connection until the context is terminated."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allow: Mapping[str, str]) -> None:
        self._names = {z85.decode(key.encode()): name.encode() for key, name in allow.items()}
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="clusterctl-zap", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self.answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            self._socket.close()

    def answer(self, request: list[bytes]) -> list[bytes]:
        """Return the ZAP reply to a ZAP request."""
        number = request[1] if len(request) > 1 else b""
        name = None
        if len(request) == 7 and request[0] == b"1.0" and request[5] == b"CURVE":
            name = self._names.get(request[6])
        if name is None:
            return [b"1.0", number, b"400", b"this key is not on the run's list", b"", b""]
        return [b"1.0", number, b"200", b"OK", name, b""]


def rank_of(user: str) -> int:
    """Return the trainer's rank that a ZAP user id names, -1 if it is not a trainer's."""
    role, _, number = user.partition("-")
    return int(number) if role == "trainer" and number.isdigit() else -1
