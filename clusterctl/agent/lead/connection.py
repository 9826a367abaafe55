"""Connections between supervisors and the lead: JSON lines over mutually authenticated TLS.

A `LeadConnection` is one TLS connection. A `Channel` outlives it: it numbers messages, keeps them until the other side
acknowledges them, and repeats them over the next connection. Frames are `{"s": number, "a": acknowledged, "m": ...}`;
heartbeats have no `s`.
"""

from __future__ import annotations

import json
import ssl
from typing import Callable

from clusterctl.agent.event_loop import READ, WRITE, EventLoop
from clusterctl.agent.lead.channel import MAX_FRAME, LeadFrame, parse_frame
from clusterctl.agent.tls import shake_hands
from clusterctl.transfer.tls import peer_node

RETRY_S = 0.5
DIAL_S = 2.0  # better to retry than to wait longer: the kernel backs off
HANDSHAKE_S = 10.0
#: The frame with which a node's guardian reports that its supervisor is dead.
GONE: LeadFrame = {"a": 0, "gone": True}
#: The lead's to a node that was lost.
MOVED: LeadFrame = {"a": 0, "moved": True}


class LeadConnection:
    """One non-blocking TLS connection. `on_open(node)` comes first, `on_closed(error)` last and once."""

    def __init__(
        self,
        loop: EventLoop,
        sock: ssl.SSLSocket,
        on_open: Callable[[LeadConnection, int], None],
        on_frame: Callable[[LeadFrame], None],
        on_closed: Callable[[OSError | None], None] = lambda error: None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_open = on_open
        self.on_frame = on_frame
        self.on_closed = on_closed
        self._is_open = False
        self._closed = False
        self._pumping = False
        self._wants_write = False
        self._incoming = bytearray()
        self._outgoing = bytearray()
        shake_hands(loop, sock, HANDSHAKE_S, self._greet)

    def send(self, frame: LeadFrame) -> None:
        if not self._closed:
            self._outgoing += json.dumps(frame, separators=(",", ":")).encode() + b"\n"
            if self._is_open and not self._pumping:  # else it is written afterwards
                self._pump()

    def idle(self) -> bool:
        """Return True if all frames have been handed to the kernel."""
        return self._closed or not self._outgoing

    def close(self, error: OSError | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._sock)
        self._sock.close()
        self.on_closed(error)

    def _greet(self, error: OSError | None) -> None:
        if self._closed:
            return
        try:
            if error is not None:
                raise error
            node = peer_node(self._sock)
        except OSError as exc:
            self.close(exc)
            return
        self._on_open(self, node)
        self._is_open = True
        if not self._closed:
            self._pump()

    def _pump(self) -> None:
        """Do all the I/O the socket is ready for. Socket errors close the connection, errors of callbacks do not."""
        self._pumping, self._wants_write = True, False
        try:
            error = self._attempt(self._read)
            self._deliver()
            error = error or self._attempt(self._write)
        finally:
            self._pumping = False
        if error is not None:
            self.close(error)
        elif not self._closed:
            self._loop.watch(self._sock, self._pump, READ | (WRITE if self._wants_write else 0))

    def _attempt(self, work: Callable[[], None]) -> OSError | None:
        try:
            work()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._wants_write = True
        except OSError as exc:
            return exc
        except (ValueError, KeyError) as exc:
            return OSError(f"not a supervisor of this run: {exc}")
        return None

    def _read(self) -> None:
        while len(self._incoming) <= MAX_FRAME:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed by the other side")
            self._incoming += data
        if b"\n" not in self._incoming:
            raise ValueError("a frame is too long")

    def _deliver(self) -> None:
        end = self._incoming.rfind(b"\n") + 1
        lines = bytes(self._incoming[:end]).splitlines()
        del self._incoming[:end]
        for line in lines:
            if self._closed:
                return
            try:
                frame = parse_frame(line)
            except ValueError as exc:
                self.close(OSError(f"not a supervisor of this run: {exc}"))
                return
            self.on_frame(frame)

    def _write(self) -> None:
        while self._outgoing and not self._closed:
            count = self._sock.send(self._outgoing)
            del self._outgoing[:count]
