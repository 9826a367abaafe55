"""Types of the settings that have more than one part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_UNITS = {"pass": "pass", "passes": "pass", "step": "steps", "steps": "steps", "s": "s"}


@dataclass(frozen=True)
class Mode:
    """The consistency model between trainers; `str(mode)` has the form used in conf.py, such as `ssp(4)`.

    `bound` is the staleness bound of ssp, the number of steps between exchanges of geo, and None for the
    others.
    """

    kind: str
    bound: int | None = None

    def __str__(self) -> str:
        return self.kind if self.bound is None else f"{self.kind}({self.bound})"

    @classmethod
    def parse(cls, value: object) -> Mode:
        """Parse "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1. Raises ValueError."""
        text = value if isinstance(value, str) else ""
        if text in ("sync", "async", "half-async"):
            return cls(text)
        match = re.fullmatch(r"(ssp|geo)\(([0-9]{1,9})\)", text)
        if not match or (match[1] == "geo" and int(match[2]) == 0):
            raise ValueError('must be "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1')
        return cls(match[1], int(match[2]))


@dataclass(frozen=True)
class Every:
    """The interval between saves: `count` times `unit`, which is "pass", "steps" or "s"."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count} {self.unit}"

    @classmethod
    def parse(cls, value: object) -> Every:
        """Parse "1 pass", "500 steps", "600 s" or a bare number of steps. Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"{value} steps"
        match = re.fullmatch(r"([0-9]{1,9}) ?([a-z]+)", value) if isinstance(value, str) else None
        if not match or int(match[1]) == 0 or match[2] not in _UNITS:
            raise ValueError('must look like "1 pass", "500 steps" or "600 s"; a bare number means steps')
        return cls(int(match[1]), _UNITS[match[2]])


class Restarts(NamedTuple):
    """The number of times that a process of each role may be restarted within an hour."""

    pserver: int
    trainer: int

    @classmethod
    def parse(cls, value: object) -> Restarts:
        """Parse a number such as 3, or {"pserver": 1, "trainer": 5}. Raises ValueError."""
        given = value if isinstance(value, Mapping) else dict.fromkeys(cls._fields, value)
        numbers: list[Any] = [given.get(role, 0) for role in cls._fields]
        if not set(given) <= set(cls._fields) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError('must be a whole number, 0 or more, or {"pserver": 1, "trainer": 5}')
        return cls(*numbers)


@dataclass(frozen=True)
class Best:
    """The criterion for the best checkpoint: the highest ("max") or lowest ("min") `metric`."""

    metric: str
    direction: str

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction}"

    @classmethod
    def parse(cls, value: object) -> Best:
        """Parse a string such as "auc:max" or "loss:min". Raises ValueError."""
        match = re.fullmatch(r"(\w[\w.-]*):(max|min)", value) if isinstance(value, str) else None
        if not match:
            raise ValueError('must look like "auc:max" or "loss:min"')
        return cls(match[1], match[2])
