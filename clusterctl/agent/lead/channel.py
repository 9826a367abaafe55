"""Exactly-once, ordered messages over connections that come and go. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from clusterctl.common.safe_json import is_whole, parse

Message = dict[str, Any]

MAX_FRAME = 16 << 20


def parse_frame(line: bytes) -> Message:
    """Raises ValueError for what is no frame. What its message says is not looked at."""
    frame = parse(line)
    if not isinstance(frame, dict) or not is_whole(frame.get("a")):
        raise ValueError("a frame says how much has arrived")
    if "s" in frame and not (is_whole(frame["s"]) and isinstance(frame.get("m"), dict)):
        raise ValueError("a numbered frame has a message")
    return frame


class Channel:
    """Exactly-once, in-order messages over connections that come and go. Pure: no clock, no socket.

    A side with a `name` puts it into every frame (`"i"`), so that the other can tell it from one before it.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = {} if name is None else {"i": name}
        self._sent = 0
        self._received = 0
        self._unacknowledged: deque[Message] = deque()

    def wrap(self, message: Message) -> Message:
        self._sent += 1
        frame = {"s": self._sent, "a": self._received, "m": message, **self._name}
        self._unacknowledged.append(frame)
        return frame

    def heartbeat(self) -> Message:
        return {"a": self._received, **self._name}

    def accept(self, frame: Message) -> Message | None:
        """The message of a frame, or None for a heartbeat or a repetition."""
        while self._unacknowledged and self._unacknowledged[0]["s"] <= frame["a"]:
            self._unacknowledged.popleft()
        if "s" not in frame or frame["s"] != self._received + 1:
            return None
        self._received += 1
        message: Message = frame["m"]
        return message

    def repeat(self) -> list[Message]:
        """What a new connection must carry first."""
        return list(self._unacknowledged)
