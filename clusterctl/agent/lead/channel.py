"""Exactly-once, ordered messages over connections that come and go. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, TypedDict

from clusterctl.common.safe_json import parse
from clusterctl.common.schema import NotRequired, reader

MAX_FRAME = 16 << 20


class LeadFrame(TypedDict):
    """One line on a connection: message `m` with number `s`, or a heartbeat.

    All messages up to number `a` have arrived. `i` names the supervisor; `gone` is its guardian's. `t` is when the
    supervisor sent it, in seconds since its machine has booted, and `e` the last such time that the lead has got.
    `moved` tells a supervisor that its processes run elsewhere now: it may join anew, without any.
    """

    a: int
    t: NotRequired[float]
    e: NotRequired[float]
    s: NotRequired[int]
    m: NotRequired[Mapping[str, Any]]
    i: NotRequired[str]
    gone: NotRequired[bool]
    moved: NotRequired[bool]


def parse_frame(line: bytes) -> LeadFrame:
    """Return the frame in a line; raises ValueError if it is malformed. Its message is not checked."""
    frame: LeadFrame = reader(LeadFrame)(parse(line))
    if "s" in frame and "m" not in frame:
        raise ValueError("a numbered frame without a message")
    return frame


class Channel:
    """Exactly-once, in-order messages over connections that come and go. Pure: no clock, no socket.

    A side with a `name` puts it into every frame (`"i"`), so that the other side detects a replacement.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._sent = 0
        self._received = 0
        self._unacknowledged: deque[LeadFrame] = deque()
        self._echo: float | None = None

    def wrap(self, message: Mapping[str, Any]) -> LeadFrame:
        """Number a message and keep it until it is acknowledged."""
        self._sent += 1
        frame = self._signed({"s": self._sent, "a": self._received, "m": message})
        self._unacknowledged.append(frame)
        return frame

    def heartbeat(self, t: float | None = None) -> LeadFrame:
        """Return a frame without a message, which is sent at `t`; the other side answers with that time in its next."""
        frame = self._signed({"a": self._received})
        if t is not None:
            frame["t"] = t
        return frame

    def _signed(self, frame: LeadFrame) -> LeadFrame:
        if self._name is not None:
            frame["i"] = self._name
        if self._echo is not None:
            frame["e"] = self._echo
        return frame

    def accept(self, frame: LeadFrame) -> Mapping[str, Any] | None:
        """The message of a frame, or None for a heartbeat or a repeated message."""
        self._echo = frame.get("t", self._echo)
        while self._unacknowledged and self._unacknowledged[0]["s"] <= frame["a"]:
            self._unacknowledged.popleft()
        if "s" not in frame or frame["s"] != self._received + 1:
            return None
        self._received += 1
        return frame["m"]

    def repeat(self) -> list[LeadFrame]:
        """The frames that a new connection must carry first."""
        return list(self._unacknowledged)
