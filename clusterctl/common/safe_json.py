"""JSON: that of untrusted senders is parsed within bounds.

These are nodes, processes of a run, their files, and programs such as kubectl.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 50  # more than our own messages have; recursive functions fail at some hundreds
MOST_VALUES = 1_000_000  # each may take thirty times the memory of its text
MOST_BYTES = 64 << 20
MOST = 1 << 63
_STRING = re.compile(rb'"[^"]*"')
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dumps(value: Any) -> bytes:
    """Encode a value as JSON, on one line without spaces."""
    return _ENCODER.encode(value).encode()


def loads(data: bytes | str) -> Any:
    """Parse JSON of this account, without bounds. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse(text: bytes | str, most_bytes: int = MOST_BYTES, deepest: int = DEEPEST) -> Any:
    """Parse JSON. Raises ValueError, also if it is longer or nested more deeply than that, or has too many values."""
    line = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if len(line) > most_bytes:
        raise ValueError("it is too long")
    if len(line) > MOST_VALUES and _has_too_many(line):
        raise ValueError("it has too many values")
    value = loads(line)
    if line.count(b"[") + line.count(b"{") > deepest and _is_deep(value, deepest):
        raise ValueError("it is nested too deeply")
    return value


def _has_too_many(line: bytes) -> bool:
    """Count the commas and brackets outside strings: each value has one before it."""
    if _count(line) <= MOST_VALUES:
        return False
    bare = line.replace(rb"\\", b"").replace(rb"\"", b"")
    return bare.count(b'"') > 2 * MOST_VALUES or _count(_STRING.sub(b"", bare)) > MOST_VALUES


def _count(line: bytes) -> int:
    return sum(map(line.count, (b",", b"[", b"{")))


def _is_deep(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(item, (dict, list)) and (levels <= 1 or _is_deep(item, levels - 1)) for item in inside)


def is_whole(value: object) -> bool:
    """Return True if it is an integer that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -MOST <= value < MOST


def is_number(value: object) -> bool:
    """Return True if it is a float or an integer that fits into 64 bits. NaN and infinity are numbers."""
    return type(value) is float or is_whole(value)


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event that a process sent on its control socket; None if it is not an event.

    Its steps and passes are integers: all receivers calculate with them.
    """
    try:
        event = parse(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    counted = [event[name] for name in ("step", "pass") if event.get(name) is not None]
    return event if all(is_whole(number) and number >= 0 for number in counted) else None
