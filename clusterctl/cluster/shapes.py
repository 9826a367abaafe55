"""Shapes of values in the nodes' answers: predicates that return True if a value has the shape.

Answers may be hostile, so shapes check ranges and lengths too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from clusterctl.common.paths import is_job_name
from clusterctl.common.safe_json import is_whole

Shape = Callable[[Any], bool]
END_OF_TIME = 1e11  # seconds since the epoch; calendars do not reach further
LONGEST_LINE = 64 << 10  # of a log; agents truncate at this length
MOST_DIGITS = 9


def text(value: Any) -> bool:
    return isinstance(value, str)


def line(value: Any) -> bool:
    return text(value) and len(value) <= LONGEST_LINE


def number(value: Any) -> bool:
    """Return True for any number, including NaN and infinity: a loss can be either."""
    return isinstance(value, float) or is_whole(value)


def finite(value: Any) -> bool:
    return number(value) and math.isfinite(value)


def moment(value: Any) -> bool:
    return finite(value) and 0 <= value < END_OF_TIME


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def run_name(value: Any) -> bool:
    return text(value) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS


def job_id(value: Any) -> bool:
    """Return True for the name of a job that is safe to use as a directory name on this machine."""
    return text(value) and is_job_name(value)


def one_of(*words: str) -> Shape:
    return lambda value: text(value) and value in words


def maybe(shape: Shape) -> Shape:
    """Accept a value of this shape, None, or a missing field."""
    return lambda value: value is None or shape(value)


def all_of(*shapes: Shape) -> Shape:
    return lambda value: all(shape(value) for shape in shapes)


def list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def pair_of(*shapes: Shape) -> Shape:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(shapes)
            and all(s(v) for s, v in zip(shapes, value, strict=True))
        )

    return fits


def up_to(most: int, shape: Shape) -> Shape:
    """Accept texts and lists of this shape that are at most so long."""
    return lambda value: isinstance(value, (str, list)) and len(value) <= most and shape(value)


def each_value(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def record(**fields: Shape) -> Shape:
    """An object with these fields. Other fields are allowed and ignored."""
    return lambda value: isinstance(value, dict) and not misfits(fields, value)


def misfits(fields: Mapping[str, Shape], value: Mapping[str, Any]) -> list[str]:
    return [name for name, shape in fields.items() if not shape(value.get(name))]


def names_process(value: Mapping[str, Any]) -> bool:
    """Return True if the value names a process by role and rank, or names no process."""
    return (value.get("role") is None) == (value.get("rank") is None)
