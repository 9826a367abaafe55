"""Curves: how points become buckets, and how buckets are merged. Nodes and the control machine share it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter, mul
from typing import Annotated, Any, Callable, Literal, NamedTuple

from clusterctl.common.requests import MOST_BUCKETS, Name, Role
from clusterctl.common.schema import Bound, Count, Finite, Moment, Record, at_most

LARGEST = 1e290  # so that no sum or range overflows
NO_STEP = -1


class Bucket(NamedTuple):
    """Neighbouring points of a curve, `points` of them finite and `gaps` NaN or infinite.

    `low`, `high`, `mean` (by `weight`) and `last` are of the finite ones, None if there are none; `weight` is the sum
    of their weights. The times are those of the first and the last point, the steps the lowest and the highest, None
    if the events have no step.
    """

    t0: Moment
    t1: Moment
    step0: Count | None
    step1: Count | None
    points: Count
    weight: Finite
    low: Finite | None
    high: Finite | None
    mean: Finite | None
    last: Finite | None
    gaps: Count

    @property
    def t(self) -> float:
        """The time in its middle."""
        return (self.t0 + self.t1) / 2

    @property
    def step(self) -> float | None:
        """The step in its middle."""
        return None if self.step0 is None or self.step1 is None else (self.step0 + self.step1) / 2

    def is_sound(self) -> bool:
        """Return True if its fields fit together."""
        figures = (self.low, self.high, self.mean, self.last)
        return self.t0 <= self.t1 and self.weight >= 0 and all((one is None) == (self.points == 0) for one in figures)


SoundBucket = Annotated[Bucket, Bound("a bucket of a curve", Bucket.is_sound)]
Buckets = Annotated[Sequence[SoundBucket], at_most(MOST_BUCKETS)]


@dataclass(frozen=True)
class Curve(Record):
    """A figure of one process over time, oldest bucket first.

    `of` is "step" (what trainers and pservers report about their work), "log" (the program's own metrics), "usage"
    (`cpu` in cores, `memory` in bytes) or "table" (the rows of the sparse table `name`). `undone` are points that a
    roll back undid.
    """

    role: Role
    rank: Count
    of: Literal["step", "log", "usage", "table"]
    name: Name
    buckets: Buckets
    undone: bool

    @property
    def process(self) -> str:
        """`trainer0`."""
        return f"{self.role}{self.rank}"


def clipped(value: float) -> float:
    """Return a number of a program as a float that sums do not take beyond its range."""
    return float(min(max(value, -LARGEST), LARGEST))


def mean(values: Sequence[float], weights: Sequence[float] = ()) -> float:
    """Return the mean by weight, the plain one without weights or if all are 0.

    That of finite values is finite and in their range, despite overflow and rounding.
    """
    whole = sum(weights)
    if not whole:
        weights, whole = [1.0] * len(values), len(values)
    found: float = sum(map(mul, values, weights)) / whole
    if not isfinite(found):
        found = sum(value * (weight / whole) for value, weight in zip(values, weights))
    return min(max(found, min(values)), max(values))


def bucket(times: Sequence[float], steps: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> Bucket:
    """Return the bucket of points in order of time; a step may be NO_STEP."""
    if min(steps) == NO_STEP:
        steps = [step for step in steps if step != NO_STEP]
    if not isfinite(sum(values)):
        finite = [(value, weight) for value, weight in zip(values, weights) if isfinite(value)]
        values, weights = [value for value, _ in finite], [weight for _, weight in finite]
    return Bucket(
        t0=times[0],
        t1=times[-1],
        step0=min(steps, default=None),
        step1=max(steps, default=None),
        points=len(values),
        weight=sum(weights),
        low=min(values, default=None),
        high=max(values, default=None),
        mean=mean(values, weights) if values else None,
        last=values[-1] if values else None,
        gaps=len(times) - len(values),
    )


def merge(buckets: Sequence[Bucket]) -> Bucket:
    """Return the bucket of all points of some buckets."""
    newest = max((one for one in buckets if one.last is not None), key=attrgetter("t1"), default=None)
    return Bucket(
        t0=min(one.t0 for one in buckets),
        t1=max(one.t1 for one in buckets),
        step0=_extreme(min, (one.step0 for one in buckets)),
        step1=_extreme(max, (one.step1 for one in buckets)),
        points=sum(one.points for one in buckets),
        weight=sum(one.weight for one in buckets),
        low=_extreme(min, (one.low for one in buckets)),
        high=_extreme(max, (one.high for one in buckets)),
        mean=mean_of(buckets),
        last=newest.last if newest else None,
        gaps=sum(one.gaps for one in buckets),
    )


def mean_of(buckets: Iterable[Bucket]) -> float | None:
    """Return the mean of all points by weight; None if there are none. Numbers near the largest float are clipped."""
    known = [(clipped(one.mean), one.weight, one.points) for one in buckets if one.mean is not None]
    if not known:
        return None
    means, weights, points = zip(*known)
    return mean(means, weights if any(weights) else points)


def _extreme(choose: Callable[[list[Any]], Any], values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
