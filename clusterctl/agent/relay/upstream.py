"""Accept the upstream node, and read the stream from it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.relay.downstream import CALL_S, Downstream, wait_for
from clusterctl.agent.relay.links import PIECE
from clusterctl.agent.tls import shake_hands
from clusterctl.transfer.tls import peer_name

JOIN_S = 10.0  # for the upstream node to connect
SILENCE_S = 25.0  # of the upstream node, which may be waiting for another one: more than STALL_S + PATIENCE_MOST_S
GUESTS = 32  # handshakes at a time


class Upstream:
    """Accepts the upstream node in `loop`, and reads from it. Other clients are dropped without delaying it.

    `loop` runs in a thread of its own from now until shortly before `close`.
    """

    def __init__(self, loop: EventLoop, listener: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._loop = loop
        self._listener = listener
        self._context = context
        self._name = name
        self._sock: ssl.SSLSocket | None = None
        self._settled = threading.Event()
        self._arena = memoryview(b"")
        self._guests: list[ssl.SSLSocket] = []
        listener.setblocking(False)
        loop.watch(listener, self._let_in)
        loop.after(JOIN_S, self._settle)

    def receive(self, count: int, downstream: Sequence[Downstream]) -> memoryview:
        """Return the available bytes, at most `count`; empty at the end. Raises OSError if none arrive in time.

        While it waits it sends the bytes queued for `downstream`.
        """
        if self._sock is None:
            self._settled.wait(JOIN_S + CALL_S)
        if self._sock is None:
            raise TimeoutError(f"{self._name} did not connect within {JOIN_S:g} s")
        if not self._arena:
            self._arena = memoryview(bytearray(PIECE))
        room = self._arena[:count]
        while (filled := self._fill(self._sock, room)) is None:
            self._wait(self._sock, downstream)
        piece, self._arena = self._arena[:filled], self._arena[filled:]
        return piece.toreadonly()

    def close(self) -> None:
        self._settle()
        if self._sock is not None:
            self._sock.close()

    def _fill(self, sock: ssl.SSLSocket, room: memoryview) -> int | None:
        """Read the available bytes, a TLS record at a time. Return None if there are none, 0 at the end."""
        filled = 0
        try:
            while filled < len(room) and (count := sock.recv_into(room[filled:])):
                filled += count
        except ssl.SSLWantReadError:
            return filled or None
        return filled

    def _wait(self, sock: ssl.SSLSocket, downstream: Sequence[Downstream]) -> None:
        """Wait for data. Raises TimeoutError if none arrives in time."""
        deadline = time.monotonic() + SILENCE_S
        while sock.fileno() not in wait_for(sock, downstream, deadline - time.monotonic()):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no data from {self._name} for {SILENCE_S:g} s")
            for node in downstream:
                node.pump()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):
            raw, _ = self._listener.accept()
            raw.setblocking(False)
            guest = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            if len(self._guests) >= GUESTS:
                self._drop(self._guests[0])
            self._guests.append(guest)
            shake_hands(self._loop, guest, CALL_S, lambda error: self._greet(guest, error))

    def _greet(self, guest: ssl.SSLSocket, error: OSError | None) -> None:
        if guest not in self._guests:
            return
        if error is None and peer_name(guest) == self._name:
            self._guests.remove(guest)
            self._sock = guest
            self._settle()
        else:
            self._drop(guest)

    def _settle(self) -> None:
        """Accept no more: the upstream node is connected, or its time is over."""
        for guest in list(self._guests):
            self._drop(guest)
        self._loop.unwatch(self._listener)
        self._listener.close()
        self._settled.set()

    def _drop(self, guest: ssl.SSLSocket) -> None:
        self._guests.remove(guest)
        self._loop.unwatch(guest)
        guest.close()
