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

    All messages up to number `a` have arrived. `i` names the supervisor; `gone` is its guardian's.
    """

    a: int
    s: NotRequired[int]
    m: NotRequired[Mapping[str, Any]]
    i: NotRequired[str]
    gone: NotRequired[bool]


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

    def wrap(self, message: Mapping[str, Any]) -> LeadFrame:
        """Number a message and keep it until it is acknowledged."""
        self._sent += 1
        frame = self._signed({"s": self._sent, "a": self._received, "m": message})
        self._unacknowledged.append(frame)
        return frame

    def heartbeat(self) -> LeadFrame:
        return self._signed({"a": self._received})

    def _signed(self, frame: LeadFrame) -> LeadFrame:
        if self._name is not None:
            frame["i"] = self._name
        return frame

    def accept(self, frame: LeadFrame) -> Mapping[str, Any] | None:
        """The message of a frame, or None for a heartbeat or a repeated message."""
        while self._unacknowledged and self._unacknowledged[0]["s"] <= frame["a"]:
            self._unacknowledged.popleft()
        if "s" not in frame or frame["s"] != self._received + 1:
            return None
        self._received += 1
        return frame["m"]

    def repeat(self) -> list[LeadFrame]:
        """The frames that a new connection must carry first."""
        return list(self._unacknowledged)
