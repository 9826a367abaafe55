"""How a job trains: its mode, and when it makes checkpoints, as spec.json says them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import Rule

#: How many pushes of a trainer may be on their way at once. In ssp and geo its next values depend on the answer.
WINDOWS = {"sync": 1, "async": 4, "ssp": 1, "geo": 1}

_MODE = re.compile(r"(sync|async)|(ssp|geo)\((\d{1,9})\)")


@dataclass(frozen=True)
class Mode:
    """`name` is "sync", "async", "ssp" or "geo"; `bound` is the s of ssp(s), or the k of geo(k)."""

    name: str = "sync"
    bound: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.bound})" if self.name in ("ssp", "geo") else self.name

    @staticmethod
    def parse(text: str) -> Mode:
        """Raises UseError for anything but `sync`, `async`, `ssp(s)` or `geo(k)`, k at least 1."""
        match = _MODE.fullmatch(text)
        if match is None or (match[2] == "geo" and int(match[3]) < 1):
            raise UseError(f"mode {text!r} is not known", remedy='use "sync", "async", "ssp(4)" or "geo(25)"')
        return Mode(match[1]) if match[1] else Mode(match[2], int(match[3]))


@dataclass(frozen=True)
class Every:
    """A checkpoint every `n` passes ("pass"), steps ("step") or seconds ("s")."""

    unit: str
    n: float

    def is_pass(self, passes: int) -> bool:
        return self.unit == "pass" and passes > 0 and passes % self.n == 0

    def is_step(self, step: int) -> bool:
        return self.unit == "step" and step > 0 and step % self.n == 0


@dataclass(frozen=True, init=False)
class Delta(Rule):
    """What a lane does in geo mode: trainers send what they changed, and the lane adds it."""

    def __init__(self) -> None:
        self._set(1.0, l1=0.0, l2=0.0)

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        np.add(value, grad, out=out)
