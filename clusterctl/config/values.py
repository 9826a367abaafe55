"""Settings that are more than a number or a word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_UNITS = {"pass": "pass", "passes": "pass", "step": "steps", "steps": "steps", "s": "s"}


@dataclass(frozen=True)
class Mode:
    """How pushes of several trainers meet; `str(mode)` is what conf.py says, such as `ssp(4)`.

    `bound` is the staleness of ssp or the steps between exchanges of geo, and None for sync and async.
    """

    kind: str
    bound: int | None = None

    def __str__(self) -> str:
        return self.kind if self.bound is None else f"{self.kind}({self.bound})"

    @classmethod
    def parse(cls, value: object) -> Mode:
        """Takes "sync", "async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1; else raises ValueError."""
        text = value if isinstance(value, str) else ""
        if text in ("sync", "async"):
            return cls(text)
        match = re.fullmatch(r"(ssp|geo)\(([0-9]{1,9})\)", text)
        if not match or (match[1] == "geo" and int(match[2]) == 0):
            raise ValueError('must be "sync", "async", "ssp(4)" or "geo(25)" (with any number)')
        return cls(match[1], int(match[2]))


@dataclass(frozen=True)
class Every:
    """How often to save: `count` of `unit`, which is "pass", "steps" or "s"."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count} {self.unit}"

    @classmethod
    def parse(cls, value: object) -> Every:
        """Takes "1 pass", "500 steps", "600 s" or a bare number of steps; raises ValueError otherwise."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"{value} steps"
        match = re.fullmatch(r"([0-9]{1,9}) ?([a-z]+)", value) if isinstance(value, str) else None
        if not match or int(match[1]) == 0 or match[2] not in _UNITS:
            raise ValueError('must be like "1 pass", "500 steps" or "600 s"; a bare number is steps')
        return cls(int(match[1]), _UNITS[match[2]])


class Restarts(NamedTuple):
    """How often a process of each role may be started again within an hour."""

    pserver: int
    trainer: int

    @classmethod
    def parse(cls, value: object) -> Restarts:
        """Takes 3, or {"pserver": 1, "trainer": 5}; raises ValueError otherwise."""
        given = value if isinstance(value, Mapping) else dict.fromkeys(cls._fields, value)
        numbers: list[Any] = [given.get(role, 0) for role in cls._fields]
        if not set(given) <= set(cls._fields) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError('must be a whole number from 0 up, or {"pserver": 1, "trainer": 5}')
        return cls(*numbers)


@dataclass(frozen=True)
class Best:
    """Which checkpoint is the best one: that of the highest ("max") or lowest ("min") `metric`."""

    metric: str
    direction: str

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction}"

    @classmethod
    def parse(cls, value: object) -> Best:
        """Takes "auc:max" or "loss:min"; raises ValueError otherwise."""
        match = re.fullmatch(r"(\w[\w.-]*):(max|min)", value) if isinstance(value, str) else None
        if not match:
            raise ValueError('must be like "auc:max" or "loss:min"')
        return cls(match[1], match[2])
