"""Curves of several processes merged into one, by time or by step. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from clusterctl.observe.record.model import Bucket, Curve

Axis = Literal["time", "step"]
CELLS = 200
LARGEST = 1e290  # so that no sum or range overflows


def shifted(curve: Curve, offset_s: float) -> Curve:
    """Return the curve with its times moved to our clock."""
    buckets = (bucket._replace(t0=bucket.t0 + offset_s, t1=bucket.t1 + offset_s) for bucket in curve.buckets)
    return Curve(curve.role, curve.rank, curve.of, curve.name, tuple(buckets), curve.undone)


def split_undone(curve: Curve, rollbacks: Sequence[tuple[float, int]]) -> list[Curve]:
    """Move the points that a roll back undid, at a time and to a step, to a curve of their own.

    The node has done that where a process repeated the steps. It cannot know of a roll back after which the process
    made no step. Of a bucket on both sides of the step, all points stay.
    """
    if curve.undone or not rollbacks:
        return [curve]

    def is_undone(bucket: Bucket) -> bool:
        return any(bucket.t1 <= t and bucket.step0 is not None and bucket.step0 > step for t, step in rollbacks)

    gone = tuple(bucket for bucket in curve.buckets if is_undone(bucket))
    kept = tuple(bucket for bucket in curve.buckets if not is_undone(bucket))
    parts = ((kept, False), (gone, True))
    return [Curve(curve.role, curve.rank, curve.of, curve.name, some, undone) for some, undone in parts if some]


def merged(curves: Iterable[Curve], *, by: Axis = "time", cells: int = CELLS) -> list[Bucket]:
    """Merge the curves of several processes into at most `cells` buckets of equal intervals of time or of steps.

    The mean of a bucket is that of all points in it, by weight. There are no more cells than the longest curve has
    buckets: else each cell would show another process. Buckets without a step are left out if they are merged by step.
    """
    place = _time if by == "time" else _step
    some = [[(at, bucket) for bucket in curve.buckets if (at := place(bucket)) is not None] for curve in curves]
    places = [at for placed in some for at, _ in placed]
    if not places:
        return []
    cells = min(cells, max(map(len, some)))
    first, last = min(places), max(places)
    width = (last - first) / cells or 1.0
    grid: dict[int, list[Bucket]] = {}
    for placed in some:
        for at, bucket in placed:
            grid.setdefault(min(cells - 1, int((at - first) / width)), []).append(bucket)
    return [_merge(inside) for _, inside in sorted(grid.items())]


def summed(curves: Iterable[Curve], *, by: Axis = "time", cells: int = CELLS) -> list[Bucket]:
    """Add up several curves, such as the throughput of all trainers. Each keeps its value between two of its points.

    Empty if the curves have no steps and are to be added by step.
    """
    known = [[bucket for bucket in curve.buckets if bucket.mean is not None] for curve in curves]
    known = [buckets for buckets in known if buckets]
    if not known or (by == "step" and any(bucket.step0 is None for buckets in known for bucket in buckets)):
        return []
    begins = [[_begin(bucket, by) for bucket in buckets] for buckets in known]
    last = [_end(buckets[-1], by) for buckets in known]
    first = min(begin[0] for begin in begins)
    cells = min(cells, max(map(len, known)))
    width = (max(last) - first) / cells
    found = []
    for number in range(cells if width else 1):
        at = first + (number + 0.5) * width
        values = [
            clipped(buckets[index - 1].mean or 0.0)
            for buckets, begin, end in zip(known, begins, last, strict=True)
            if (index := bisect_right(begin, at)) and at <= end + width
        ]
        if values:
            total, step = sum(values), round(at) if by == "step" else None
            found.append(Bucket(at, at, step, step, 1, 1.0, total, total, total, total, 0))
    return found


def _begin(bucket: Bucket, by: Axis) -> float:
    return bucket.t0 if by == "time" else clipped(bucket.step0 or 0)


def _end(bucket: Bucket, by: Axis) -> float:
    return bucket.t1 if by == "time" else clipped(bucket.step1 or 0)


def clipped(value: float) -> float:
    """Return a number of a program as a float that sums do not take beyond its range."""
    return float(min(max(value, -LARGEST), LARGEST))


def _time(bucket: Bucket) -> float | None:
    return (bucket.t0 + bucket.t1) / 2


def _step(bucket: Bucket) -> float | None:
    return None if bucket.step0 is None or bucket.step1 is None else (bucket.step0 + bucket.step1) / 2


def _merge(buckets: list[Bucket]) -> Bucket:
    newest = max((bucket for bucket in buckets if bucket.last is not None), key=lambda one: one.t1, default=None)
    return Bucket(
        t0=min(bucket.t0 for bucket in buckets),
        t1=max(bucket.t1 for bucket in buckets),
        step0=_extreme(min, (bucket.step0 for bucket in buckets)),
        step1=_extreme(max, (bucket.step1 for bucket in buckets)),
        points=sum(bucket.points for bucket in buckets),
        weight=sum(bucket.weight for bucket in buckets),
        low=_extreme(min, (bucket.low for bucket in buckets)),
        high=_extreme(max, (bucket.high for bucket in buckets)),
        mean=weighted_mean(buckets),
        last=newest.last if newest else None,
        gaps=sum(bucket.gaps for bucket in buckets),
    )


def weighted_mean(buckets: Iterable[Bucket]) -> float | None:
    """Return the mean of all points by weight; None if there are none. Numbers near the largest float are clipped."""
    known = [(clipped(bucket.mean), bucket.weight or bucket.points) for bucket in buckets if bucket.mean is not None]
    whole = sum(weight for _, weight in known)
    return sum(mean * (weight / whole) for mean, weight in known) if whole else None


def _extreme(choose: Callable[[list[Any]], Any], values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def final(curves: Iterable[Curve], *, is_total: bool = False) -> float | None:
    """Return the mean of the last values of all processes, by weight, or their sum.

    It is None if a last value is not finite.
    """
    ends = [curve.buckets[-1] for curve in curves if curve.buckets]
    values = [clipped(bucket.last) for bucket in ends if bucket.last is not None]
    if len(values) < len(ends) or not values:
        return None
    if is_total:
        return sum(values)
    weights = [bucket.weight / max(bucket.points, 1) for bucket in ends]
    whole = sum(weights)
    if not 0 < whole < LARGEST:
        weights, whole = [1.0] * len(values), float(len(values))
    return sum(value * (weight / whole) for value, weight in zip(values, weights, strict=True))
