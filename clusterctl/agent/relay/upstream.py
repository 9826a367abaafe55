"""Accept the upstream node, and read the stream from it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from clusterctl.agent.relay.downstream import CALL_S, Downstream, hang_up, is_named, wait_for
from clusterctl.agent.relay.links import PIECE

JOIN_S = 10.0  # for the upstream node to connect
SILENCE_S = 25.0  # of the upstream node, which may be waiting for another one: more than STALL_S + PATIENCE_MOST_S
GUESTS = 32  # handshakes at a time


class Upstream:
    """Accepts the upstream node and reads from it. Other clients are dropped without delaying it."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._listener = listener
        self._context = context
        self._name = name
        self._sock: ssl.SSLSocket | None = None
        self._closed = False
        self._arena = memoryview(b"")
        self._guests: dict[ssl.SSLSocket, float] = {}
        self._deadline = time.monotonic() + JOIN_S
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._welcome, name="relay-upstream", daemon=True)
        self._thread.start()

    def receive(self, count: int, downstream: Sequence[Downstream]) -> memoryview:
        """Return the available bytes, at most `count`; empty at the end. Raises OSError if none arrive in time.

        While it waits it sends the bytes queued for `downstream`.
        """
        if self._sock is None:
            self._thread.join()
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
        self._closed = True
        hang_up(self._listener)
        self._thread.join()
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

    def _welcome(self) -> None:
        """Accept clients and do handshakes, in a thread, until the upstream node is connected or the time is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while self._sock is None and not self._closed and time.monotonic() < self._deadline:
                for key, _ in selector.select(0.5):
                    if key.fileobj is self._listener:
                        self._let_in(selector)
                    else:
                        self._shake(selector, key.fileobj)  # type: ignore[arg-type]
                self._send_away(selector, time.monotonic() - CALL_S)
            self._send_away(selector, float("inf"))
        self._listener.close()

    def _let_in(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            raw, _ = self._listener.accept()
            raw.setblocking(False)
            guest = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            if len(self._guests) >= GUESTS:
                self._drop(selector, next(iter(self._guests)))
            self._guests[guest] = time.monotonic()
            selector.register(guest, selectors.EVENT_READ)

    def _shake(self, selector: selectors.BaseSelector, guest: ssl.SSLSocket) -> None:
        try:
            guest.do_handshake()
        except ssl.SSLWantReadError:
            return
        except (OSError, ValueError):
            self._drop(selector, guest)
            return
        if self._sock is None and is_named(guest, self._name):
            selector.unregister(guest)
            del self._guests[guest]
            self._sock = guest
        else:
            self._drop(selector, guest)

    def _send_away(self, selector: selectors.BaseSelector, before: float) -> None:
        for guest in [guest for guest, since in self._guests.items() if since < before]:
            self._drop(selector, guest)

    def _drop(self, selector: selectors.BaseSelector, guest: ssl.SSLSocket) -> None:
        if self._guests.pop(guest, None) is not None:
            selector.unregister(guest)
            guest.close()
