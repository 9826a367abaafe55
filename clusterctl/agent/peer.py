"""The protocol between control machine and agent: JSON lines over one command's stdin and stdout.

The agent reads one request `{"op": ..., ...}` and answers with JSON lines. Bulk data follows the line that announces
it, as raw bytes. The last line is `{"done": {...}}` or `{"error": {"kind", "message", "hint"}}`. With `"stay": true`
in the request, and in the `done` line, another request may follow; it is greeted with `{"again": true}`.

Between messages the control machine sends blank lines: heartbeats. Not every connection that has lost its other end
reports that, so an agent to which nothing has arrived for `silence_s` ends. Arrived means that it can be read: an agent
that is busy need not have read it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from select import select
from typing import Any

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.safe_json import dumps, loads

MAX_LINE = 64 << 20
BUFFERED = 1 << 17  # no less than what Python reads ahead
PIECE = 1 << 16
MOST_AHEAD = 1 << 16  # read before it is wanted
HEARTBEAT_EVERY_S = 5.0
NEWS_S = 0.5
SILENCE_S = 30.0
LOOK_S = 1.0


class Peer:
    """The control machine, seen from the agent. `ahead`: what has been read of its input already."""

    def __init__(self, incoming: int, outgoing: int, ahead: bytes = b"", silence_s: float = SILENCE_S) -> None:
        self.silence_s = silence_s
        self._incoming = incoming
        self._outgoing = outgoing
        self._ahead = bytearray(ahead)
        self._searched = 0
        self._arrived = self._spoke = time.monotonic()

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raises `Gone` at end of file, and if nothing arrives for `silence_s`."""
        while (message := self._take_message()) is None:
            self._await_input()
            if not self._fill():
                raise Gone
        return message

    def arrived(self) -> dict[str, Any] | None:
        """Return the next message if it is here, without waiting for it. Raises as `look` does."""
        self.look()
        return self._take_message()

    def _take_message(self) -> dict[str, Any] | None:
        while (end := self._ahead.find(b"\n", self._searched)) >= 0:
            line = bytes(self._ahead[:end])
            del self._ahead[: end + 1]
            self._searched = 0
            if line:
                value = loads(line)
                if not isinstance(value, dict):
                    raise AgentError("a request must be a JSON object", kind="usage")
                return value
        self._searched = len(self._ahead)
        if self._searched > MAX_LINE:
            raise AgentError("a request is too long", kind="usage")
        return None

    def read_some(self, count: int) -> bytes:
        """Return at most `count` bytes of bulk data, b"" at end of file. Raises `Gone` if none come for `silence_s`."""
        if not self._ahead:
            self._await_input()
            return os.read(self._incoming, count)
        piece = bytes(self._ahead[:count])
        del self._ahead[:count]
        self._searched = 0
        return piece

    def look(self) -> None:
        """Raise `Gone` if the control machine has closed the connection, or has been silent for too long."""
        if self._is_readable(0.0):
            if len(self._ahead) < MOST_AHEAD and not self._fill():
                raise Gone
        elif time.monotonic() - self._arrived > self.silence_s:
            raise self._silent()

    def is_gone(self) -> bool:
        """Return True if the control machine has closed the connection, or has been silent for too long."""
        try:
            self.look()
        except Gone:
            return True
        return False

    def readable(self, others: Sequence[int], limit_s: float) -> list[int]:
        """Wait until one of these descriptors can be read, or a message arrives. Return those that can be."""
        ready = select([self._incoming, *others], [], [], limit_s)[0]
        return [fd for fd in others if fd in ready]

    def _fill(self) -> int:
        piece = os.read(self._incoming, PIECE)
        self._ahead += piece
        return len(piece)

    def _await_input(self) -> None:
        if not self._is_readable(max(0.0, self._arrived + self.silence_s - time.monotonic())):
            raise self._silent()

    def _silent(self) -> Gone:
        return Gone(f"nothing arrived from the control machine for {self.silence_s:g} s")

    def _is_readable(self, limit_s: float) -> bool:
        ready = select([self._incoming], [], [], limit_s)[0]
        if ready:
            self._arrived = time.monotonic()
        return bool(ready)

    def send(self, value: dict[str, Any]) -> None:
        """Send a JSON line. Raises `Gone` if the control machine has left."""
        self.send_bytes(dumps(value) + b"\n")

    def heartbeat(self, **news: Any) -> None:
        """Send a heartbeat every HEARTBEAT_EVERY_S during long work, every NEWS_S with news of it. Raises `Gone`.

        Clients that wait for an answer skip it.
        """
        if time.monotonic() - self._spoke > (NEWS_S if news else HEARTBEAT_EVERY_S):
            self.look()
            self.send({"alive": True, **news})

    def send_bytes(self, data: bytes) -> None:
        self._spoke = time.monotonic()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._outgoing, view) :]
            except BlockingIOError:
                self._await_reader()
            except (BrokenPipeError, ConnectionResetError):
                raise Gone from None

    def _await_reader(self) -> None:
        """Wait while the control machine does not read, as long as it sends heartbeats."""
        if not select([], [self._outgoing], [], LOOK_S)[1]:
            self.look()


def standard_peer() -> Peer:
    """Return the peer on standard input and output, which from now on are read and written by it alone."""
    incoming, outgoing = sys.stdin.fileno(), sys.stdout.fileno()
    for fd in (incoming, outgoing):
        os.set_blocking(fd, False)
    return Peer(incoming, outgoing, sys.stdin.buffer.read1(BUFFERED))  # type: ignore[union-attr]  # only its buffer
