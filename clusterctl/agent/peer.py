"""The protocol between control machine and agent: JSON lines over one SSH command's stdin and stdout.

The agent reads one request `{"op": ..., ...}` and answers with JSON lines. Bulk data follows the line that announces
it, as raw bytes. The last line is `{"done": {...}}` or `{"error": {"kind", "message", "hint"}}`.
"""

from __future__ import annotations

import sys
import time

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.fastjson import dumps, loads
from clusterctl.common.files import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable

MAX_LINE = 64 << 20
BEAT_S = 5.0
NEWS_S = 0.5
GO_S = 90.0  # a control machine that vanished does not close the connection


class Peer:
    """The control machine, seen from the agent."""

    def __init__(self, incoming: BinaryIO, outgoing: int) -> None:
        self.incoming = incoming
        self._outgoing = outgoing
        self._spoke = time.monotonic()
        self._has_alarm = False

    def receive(self, limit_s: float | None = None) -> dict[str, Any]:
        """Return the next JSON line. Raises `Gone` at end of file, and if no line comes within the limit."""
        line = self._read_line(limit_s)
        if not line.endswith(b"\n"):
            raise Gone
        value = loads(line)
        if not isinstance(value, dict):
            raise AgentError("a request must be a JSON object", kind="usage")
        return value

    def next_message(self) -> dict[str, Any]:
        """Return the control machine's next message for this node. Skip `wait`, sent while it serves other nodes."""
        while "wait" in (message := self.receive(GO_S)):
            pass
        return message

    def _read_line(self, limit_s: float | None) -> bytes:
        if limit_s is None:
            return self.incoming.readline(MAX_LINE)
        return self._within(limit_s, lambda: self.incoming.readline(MAX_LINE))

    def read_some(self, count: int) -> bytes:
        """Return at most `count` bytes of bulk data, b"" at end of file. Raises `Gone` if none come for GO_S."""
        return self._within(GO_S, lambda: self.incoming.read1(count))  # type: ignore[attr-defined]

    def _within(self, limit_s: float, read: Callable[[], bytes]) -> bytes:
        """Limit a read by a signal, because select() does not see buffered data. Main thread only."""
        import signal

        def gone(*_: object) -> None:
            raise Gone

        if not self._has_alarm:
            self._has_alarm = True
            signal.signal(signal.SIGALRM, gone)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            return read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def send(self, value: dict[str, Any]) -> None:
        """Send a JSON line. Raises `Gone` if the control machine has left."""
        self.send_bytes(dumps(value) + b"\n")

    def is_gone(self) -> bool:
        """Return True if the control machine closed the connection while it had nothing to send."""
        import select

        return bool(select.select([self.incoming], [], [], 0)[0])

    def beat(self, **news: Any) -> None:
        """Send a heartbeat every BEAT_S during long work, every NEWS_S with news of it.

        Clients that wait for an answer skip it.
        """
        if time.monotonic() - self._spoke > (NEWS_S if news else BEAT_S):
            self.send({"alive": True, **news})

    def send_bytes(self, data: bytes) -> None:
        self._spoke = time.monotonic()
        try:
            write_all(self._outgoing, data)
        except (BrokenPipeError, ConnectionResetError):
            raise Gone from None


def standard_peer() -> Peer:
    return Peer(sys.stdin.buffer, sys.stdout.fileno())
