"""Curves of several processes merged into one, by time or by step. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Literal

from clusterctl.common.curves import Bucket, Curve, clipped, mean, merge
from clusterctl.common.points import Rollback, is_rolled_back

Axis = Literal["time", "step"]
CELLS = 200


def shifted(curve: Curve, offset_s: float) -> Curve:
    """Return the curve with its times moved to our clock."""
    buckets = (bucket._replace(t0=bucket.t0 + offset_s, t1=bucket.t1 + offset_s) for bucket in curve.buckets)
    return replace(curve, buckets=tuple(buckets))


def split_undone(curve: Curve, rollbacks: Sequence[Rollback]) -> list[Curve]:
    """Move the points that a roll back undid to a curve of their own.

    The node has done that where a process repeated the steps. It cannot know of a roll back after which the process
    made no step. Of a bucket on both sides of the step, all points stay.
    """
    if curve.undone or not rollbacks:
        return [curve]
    kept: list[Bucket] = []
    gone: list[Bucket] = []
    for bucket in curve.buckets:
        (gone if is_rolled_back(bucket.t1, bucket.step0, rollbacks) else kept).append(bucket)
    return [
        replace(curve, buckets=tuple(some), undone=undone) for some, undone in ((kept, False), (gone, True)) if some
    ]


def merged(curves: Iterable[Curve], *, by: Axis = "time", cells: int = CELLS) -> list[Bucket]:
    """Merge the curves of several processes into at most `cells` buckets of equal intervals of time or of steps.

    The mean of a bucket is that of all points in it, by weight. There are no more cells than the longest curve has
    buckets: else each cell would show another process. Buckets without a step are left out if they are merged by step.
    """
    place = attrgetter("t" if by == "time" else "step")
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
    return [merge(inside) for _, inside in sorted(grid.items())]


def summed(curves: Iterable[Curve], *, by: Axis = "time", cells: int = CELLS) -> list[Bucket]:
    """Add up several curves, such as the throughput of all trainers. Each keeps its value between two of its points.

    Empty if the curves have no steps and are to be added by step.
    """
    known = [[bucket for bucket in curve.buckets if bucket.mean is not None] for curve in curves]
    known = [buckets for buckets in known if buckets]
    if not known or (by == "step" and any(bucket.step is None for buckets in known for bucket in buckets)):
        return []
    begin, end = map(attrgetter, ("t0", "t1") if by == "time" else ("step0", "step1"))
    begins = [list(map(begin, buckets)) for buckets in known]
    ends = [end(buckets[-1]) for buckets in known]
    first = min(places[0] for places in begins)
    cells = min(cells, max(map(len, known)))
    width = (max(ends) - first) / cells
    found = []
    for number in range(cells if width else 1):
        at = first + (number + 0.5) * width
        values = [
            clipped(buckets[index - 1].mean or 0.0)
            for buckets, places, last in zip(known, begins, ends, strict=True)
            if (index := bisect_right(places, at)) and at <= last + width
        ]
        if values:
            total, step = sum(values), round(at) if by == "step" else None
            found.append(Bucket(at, at, step, step, 1, 1.0, total, total, total, total, 0))
    return found


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
    return mean(values, [bucket.weight / max(bucket.points, 1) for bucket in ends])
