"""The training mode of a run and the interval between its saves, as conf.py writes them and as spec.json has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.common.schema import Record

_PARAMETER = re.compile(r"(ssp|geo)\(([0-9]{1,9})\)")
_INTERVAL = re.compile(r"([0-9]{1,9}) ?([a-z]+)")
_UNITS = {"pass": "pass", "passes": "pass", "step": "step", "steps": "step", "s": "s"}


class Mode(NamedTuple):
    """The consistency model between trainers; `str(mode)` has the form used in conf.py, such as `ssp(4)`.

    `name` is "sync", "async", "half-async", "ssp" or "geo". `bound` is the staleness bound of ssp, the number of steps
    between exchanges of geo, and 0 for the others.
    """

    name: str = "sync"
    bound: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.bound})" if self.name in ("ssp", "geo") else self.name

    @classmethod
    def parse(cls, value: object) -> Mode:
        """Parse "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1. Raises ValueError."""
        text = value if isinstance(value, str) else ""
        if text in ("sync", "async", "half-async"):
            return cls(text)
        match = _PARAMETER.fullmatch(text)
        if not match or (match[1] == "geo" and int(match[2]) == 0):
            raise ValueError('must be "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1')
        return cls(match[1], int(match[2]))


@dataclass(frozen=True)
class SaveInterval(Record):
    """A save every `n` passes ("pass"), steps ("step") or seconds ("s"), or only at the end of the run ("end").

    `str()` has the form used in conf.py, such as `500 steps`.
    """

    unit: str
    n: float

    def __str__(self) -> str:
        unit = "steps" if self.unit == "step" else self.unit
        return unit if unit == "end" else f"{self.n:.9g} {unit}"

    @classmethod
    def parse(cls, value: object) -> SaveInterval:
        """Parse "1 pass", "500 steps", "600 s" or a bare number of steps. Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"{value} steps"
        match = _INTERVAL.fullmatch(value) if isinstance(value, str) else None
        if not match or int(match[1]) == 0 or match[2] not in _UNITS:
            raise ValueError('must look like "1 pass", "500 steps" or "600 s"; a bare number means steps')
        return cls(_UNITS[match[2]], int(match[1]))

    def is_pass(self, passes: int) -> bool:
        """Return True if a save is due after so many passes."""
        return self.unit == "pass" and passes > 0 and passes % self.n == 0

    def is_step(self, step: int) -> bool:
        """Return True if a save is due after this step."""
        return self.unit == "step" and step > 0 and step % self.n == 0
