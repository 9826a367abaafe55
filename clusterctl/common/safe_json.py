"""JSON from those who are not believed: processes of a run, and, on the control machine, nodes."""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 50  # more than anything of ours; who walks over values by recursion stumbles over some hundreds
MOST_VALUES = 1_000_000  # each may take thirty times the room of its text
MOST = 1 << 63
_STRING = re.compile(rb'"[^"]*"')


def parse(line: bytes) -> Any:
    """As `json.loads`. Raises ValueError, also for what is nested deeper than `DEEPEST` or has too many values."""
    if len(line) > MOST_VALUES and _has_too_many(line):
        raise ValueError("it has too many values")
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(value, DEEPEST):
        raise ValueError("it is nested too deeply")
    return value


def _has_too_many(line: bytes) -> bool:
    """A value has a comma or a bracket before it, which may stand in strings as well."""
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
    """Whether it is an integer that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -MOST <= value < MOST


def parse_event(line: bytes) -> dict[str, Any] | None:
    """What a process says on its control socket; None for what is no event of anybody's.

    Its steps and passes are integers: they are counted with, wherever they arrive.
    """
    try:
        said = parse(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("event"), str):
        return None
    counted = [said[name] for name in ("step", "pass") if said.get(name) is not None]
    return said if all(is_whole(number) and number >= 0 for number in counted) else None
