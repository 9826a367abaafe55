"""Requests for a checkpoint from this node: each is a connection to a socket of the lead's supervisor.

An agent of the user connects, and gets one line of JSON, a `SaveAnswer`; end of file without it means that the run is
over. The socket has a name in Linux's abstract namespace: a path in a job directory may be too long for a socket, and
on a shared disk leads to one machine only. Only this account is answered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from typing import Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.common.answers import SaveOutcome
from clusterctl.common.paths import RunPaths
from clusterctl.common.port_claims import uid_of_peer

MOST_WAITING = 16


class SaveDoor:
    """Calls `on_request` with a number for each request; reply with `answer`. Without a socket, no requests arrive."""

    def __init__(self, loop: EventLoop, run: RunPaths, on_request: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_request = on_request
        self._numbers = itertools.count(1)
        self._waiting: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            self._listener.bind(run.door)
            self._listener.listen(MOST_WAITING)
            loop.watch(self._listener, self._accept)

    def answer(self, number: int, answer: SaveOutcome) -> None:
        """Answer a request if the client is still connected."""
        sock = self._waiting.get(number)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.send(json.dumps(answer).encode() + b"\n")
            self._close(number)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if uid_of_peer(sock) != os.getuid() or len(self._waiting) >= MOST_WAITING:
            sock.close()
            return
        number = next(self._numbers)
        self._waiting[number] = sock
        self._loop.watch(sock, lambda: self._close(number))  # it sends nothing, so it has left
        self._on_request(number)

    def _close(self, number: int) -> None:
        sock = self._waiting.pop(number)
        self._loop.unwatch(sock)
        sock.close()
