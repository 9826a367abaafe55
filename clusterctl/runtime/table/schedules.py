"""Learning-rate schedules: the rate as a function of the global step, `t` from 1. Accepted as the `lr` of a rule.

With `warmup=W` the rate climbs linearly in the first W steps, `rate * t / (W + 1)`; step W + 1 is the first at the full
rate. Then it follows a curve of `n = t - 1 - W`, the number of steps since:

| made by                                | rate at n                                                             |
|----------------------------------------|-----------------------------------------------------------------------|
| `constant_rate(rate)`                  | `rate`                                                                |
| `step_decay(rate, every, factor)`      | `rate * factor ** floor(n / every)`                                   |
| `exponential(rate, every, factor)`     | `rate * factor ** (n / every)`                                        |
| `polynomial(rate, steps, to, power)`   | `to + (rate - to) * (1 - n / N) ** power`, and `to` from n = N on     |
| `cosine(rate, steps, to)`              | `to + (rate - to) * (1 + cos(pi * n / N)) / 2`, and `to` from n = N on |

where `N = steps - W`: `steps` counts from the job's first step. Linear warm-up: Goyal et al. 2017; cosine: Loshchilov
and Hutter 2017, without restarts; the others as in Keras and torch.

Rates are float64 with the same bits on every machine: they use IEEE `+ - * /` and the decimal module, whose ln and exp
are correctly rounded, but not the C library's pow and cos, whose last bit differs between libraries.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Callable

from clusterctl.runtime.errors import UseError

#: Taylor series of cos in x squared; on 0..pi/2 the first term left out is below 1e-19.
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in reversed(range(12)))


@dataclass(frozen=True, repr=False)
class Schedule:
    """A schedule, made by a function of this module; `kind` is the name of that function."""

    kind: str
    rate: float
    warmup: int = 0
    every: int = 1
    factor: float = 1.0
    steps: int = 1
    to: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in _CURVES:
            raise UseError(f"schedule {self.kind!r} is unknown", remedy=f"known schedules: {', '.join(_CURVES)}")
        for name in ("rate", "factor", "to", "power"):
            self._require_number(name)
        self._require(self.rate > 0, "rate", "must be positive")
        self._require(self.to >= 0, "to", "must not be negative")
        self._require(0 < self.factor <= 1, "factor", "must be above 0 and at most 1")
        self._require(self.power > 0, "power", "must be positive")
        for name, least in (("warmup", 0), ("every", 1), ("steps", 1)):
            self._require_whole(name, least)
        if "steps" in _OPTIONS[self.kind]:
            self._require(self.steps > self.warmup, "steps", f"must be above warmup={self.warmup}, which is part of it")

    def at(self, t: int) -> float:
        """Return the rate of global step `t`, from 1."""
        done = t - 1 - self.warmup
        if done < 0:
            return self.rate * (t / (self.warmup + 1))
        return _CURVES[self.kind](self, done)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "rate": self.rate, **self._options()}

    def __repr__(self) -> str:
        options = "".join(f", {name}={number!r}" for name, number in self._options().items())
        return f"{self.kind}({self.rate!r}{options})"

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*_OPTIONS[self.kind], "warmup")}

    def _require(self, holds: bool, name: str, what: str) -> None:
        if not holds:
            raise UseError(f"{self.kind}({name}={getattr(self, name)!r}) {what}")

    def _require_number(self, name: str) -> None:
        number = getattr(self, name)
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
        self._require(is_number, name, "is not a finite number")
        object.__setattr__(self, name, float(number))

    def _require_whole(self, name: str, least: int) -> None:
        number = getattr(self, name)
        try:
            whole = operator.index(number)
        except TypeError:
            whole = least - 1
        self._require(whole >= least and not isinstance(number, bool), name, f"is not an integer >= {least}")
        object.__setattr__(self, name, whole)

    def _left(self, done: int) -> float:
        """Return the remaining fraction of the curve, from 1 down to 0."""
        steps = self.steps - self.warmup
        return max(0, steps - done) / steps

    def _between(self, share: float) -> float:
        return self.to + (self.rate - self.to) * share


def constant_rate(rate: float, *, warmup: int = 0) -> Schedule:
    """Stay at `rate`, as a plain number does, after a warm-up of `warmup` steps."""
    return Schedule("constant_rate", rate, warmup)


def step_decay(rate: float, *, every: int, factor: float, warmup: int = 0) -> Schedule:
    """Multiply the rate by `factor` (above 0, at most 1) after each `every` steps."""
    return Schedule("step_decay", rate, warmup, every=every, factor=factor)


def exponential(rate: float, *, every: int, factor: float, warmup: int = 0) -> Schedule:
    """Multiply the rate by `factor` (above 0, at most 1) over each `every` steps, gradually."""
    return Schedule("exponential", rate, warmup, every=every, factor=factor)


def polynomial(rate: float, *, steps: int, to: float = 0.0, power: float = 1.0, warmup: int = 0) -> Schedule:
    """Go from `rate` to `to`, reached after `steps` steps including `warmup`; power 1 is linear."""
    return Schedule("polynomial", rate, warmup, steps=steps, to=to, power=power)


def cosine(rate: float, *, steps: int, to: float = 0.0, warmup: int = 0) -> Schedule:
    """Go from `rate` to `to` along half a cosine wave, reached after `steps` steps including `warmup`."""
    return Schedule("cosine", rate, warmup, steps=steps, to=to)


def schedule_from_json(data: dict[str, Any]) -> Schedule:
    """Return the schedule in JSON of `Schedule.to_json`. Raises UseError for anything else."""
    try:
        return Schedule(**data)
    except TypeError as exc:
        raise UseError(f"schedule {data!r} is malformed") from exc


@functools.lru_cache(maxsize=1_024)
def _power(base: float, exponent: float) -> float:
    """Return `base ** exponent` for a base in 0..1 and an exponent >= 0, from 25 decimal digits."""
    if exponent == 0 or base == 1:
        return 1.0
    if base == 0 or exponent == 1:
        return base

    digits = Context(prec=25, traps=[])  # underflow gives 0 instead of an error
    return float(digits.exp(digits.multiply(digits.ln(Decimal(base)), Decimal(exponent))))


@functools.lru_cache(maxsize=1_024)
def _cosine_share(left: float) -> float:
    """Return `(1 + cos(pi * (1 - left))) / 2`, as the squared cosine of half the angle."""
    x = math.pi / 2 * (1 - left)
    square, total = x * x, 0.0
    for coefficient in _COSINE:
        total = total * square + coefficient
    return total * total if left else 0.0


_OPTIONS = {
    "constant_rate": (),
    "step_decay": ("every", "factor"),
    "exponential": ("every", "factor"),
    "polynomial": ("steps", "to", "power"),
    "cosine": ("steps", "to"),
}
_CURVES: dict[str, Callable[[Schedule, int], float]] = {
    "constant_rate": lambda self, done: self.rate,
    "step_decay": lambda self, done: self.rate * _power(self.factor, done // self.every),
    "exponential": lambda self, done: self.rate * _power(self.factor, done / self.every),
    "polynomial": lambda self, done: self._between(_power(self._left(done), self.power)),
    "cosine": lambda self, done: self._between(_cosine_share(self._left(done))),
}
