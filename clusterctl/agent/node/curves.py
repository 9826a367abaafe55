"""Reduce the events of a process to curves, so that a view of a long run costs kilobytes.

A curve has at most as many buckets as were asked for. They cover equal intervals between its first and its last point,
and none is empty. If it has no more points than that, each is a bucket. A bucket is `[t0, t1, step0, step1, count,
weight, min, max, mean, last, gaps]`: the times and steps of its first and last point (null if the events have no step),
the number of its finite values and the sum of their weights, their figures (null if there are none; the mean is
weighted), and the number of values that are NaN or infinite.

Programs write most of the events: anything in them may be malformed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf, isfinite
from operator import le, mul
from typing import Any, Union

from clusterctl.common.safe_json import MOST, is_whole
from clusterctl.common.schema import END_OF_TIME

FIGURES = ("loss", "samples_per_s", "compute", "wait", "wire", "apply_s", "send_s")
USAGE = ("cpu", "memory")
OF_PROCESSES = ("spawned", "step", "log", "usage")  # events whose `attempt` is the one that the process is in
MOST_NAMES = 200  # of the metrics that a process logs, and of its tables
MOST_LEFT = 10_000  # names left out that are counted
NAME_CHARS = 200
NO_STEP = -1

Bucket = list[Union[int, float, None]]
#: What a value is of ("step", "log", "usage" or "table"), and its name.
Key = tuple[str, str]


class Points:
    """The points of one curve in parallel arrays, in the order of events, from several attempts of the process."""

    def __init__(self) -> None:
        self.times, self.values, self.weights = array("d"), array("d"), array("d")
        self.steps = array("q")
        self._attempts: list[tuple[int, int]] = []  # the first point of each that has any, and its number

    def add(self, attempt: int, t: float, step: int, value: float, weight: float) -> None:
        if not self._attempts or self._attempts[-1][1] != attempt:
            self._attempts.append((len(self.times), attempt))
        self.times.append(t)
        self.steps.append(step)
        self.values.append(value)
        self.weights.append(weight)

    def split(self, undone_from: Sequence[int]) -> tuple[Points, Points]:
        """Return the points that count and those that were undone: by attempt, those from a step on."""
        undone: list[int] = []
        ends = [*(first for first, _ in self._attempts[1:]), len(self.times)]
        for (first, attempt), end in zip(self._attempts, ends):
            lowest = undone_from[attempt]
            if lowest < MOST:
                undone += [at for at in range(first, end) if self.steps[at] >= lowest]
        if not undone:
            return self, Points()
        kept = sorted(set(range(len(self.times))).difference(undone))
        return self._chosen(kept), self._chosen(undone)

    def _chosen(self, indexes: Sequence[int]) -> Points:
        chosen = Points()
        chosen.times = array("d", [self.times[i] for i in indexes])
        chosen.steps = array("q", [self.steps[i] for i in indexes])
        chosen.values = array("d", [self.values[i] for i in indexes])
        chosen.weights = array("d", [self.weights[i] for i in indexes])
        return chosen

    def buckets(self, most: int) -> list[Bucket]:
        points = self._in_order()
        return [points._bucket(first, end) for first, end in points._intervals(most)]

    def _in_order(self) -> Points:
        """Return the points by time: a clock may be set back."""
        if all(map(le, self.times, islice(self.times, 1, None))):
            return self
        return self._chosen(sorted(range(len(self.times)), key=self.times.__getitem__))

    def _intervals(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first point and the end of each interval that has points."""
        count = len(self.times)
        if count <= most:
            yield from ((at, at + 1) for at in range(count))
            return
        began, width, first = self.times[0], (self.times[-1] - self.times[0]) / most, 0
        for number in range(1, most + 1):
            end = bisect_left(self.times, began + number * width, first) if number < most else count
            if end > first:
                yield first, end
                first = end

    def _bucket(self, first: int, end: int) -> Bucket:
        steps: Sequence[int] = self.steps[first:end]
        if min(steps) == NO_STEP:
            steps = [step for step in steps if step != NO_STEP]
        values: Sequence[float] = self.values[first:end]
        weights: Sequence[float] = self.weights[first:end]
        if not isfinite(sum(values)):
            finite = [(value, weight) for value, weight in zip(values, weights) if isfinite(value)]
            values, weights = [value for value, _ in finite], [weight for _, weight in finite]
        about = (self.times[first], self.times[end - 1], min(steps, default=None), max(steps, default=None))
        return [*about, len(values), *_figures(values, weights), end - first - len(values)]


def _figures(values: Sequence[float], weights: Sequence[float]) -> Bucket:
    """Return the weight, minimum, maximum, weighted mean (the plain one if all weights are 0) and last of values."""
    weight = sum(weights)
    if not values:
        return [weight, None, None, None, None]
    low, high = min(values), max(values)
    parts, whole = (weights, weight) if weight else ([1.0] * len(values), len(values))
    mean: float = sum(map(mul, values, parts)) / whole
    if not isfinite(mean):
        mean = sum(value * (part / whole) for value, part in zip(values, parts))
    return [weight, low, high, min(max(mean, low), high), values[-1]]  # despite rounding


class ProcessCurves:
    """Collects the points of one process from its events, which come in the order in which they were recorded."""

    def __init__(self) -> None:
        self._points: dict[Key, Points] = {}
        self._names = Counter[str]()
        self._left: set[Key] = set()
        self._attempt = 0
        self._named: object = None  # how the events name this attempt
        self._lowest = {kind: [MOST] for kind in OF_PROCESSES}  # the lowest step of each attempt, by kind of event
        self._staleness = (0, 0)

    @property
    def left(self) -> int:
        """The number of names that were left out, up to MOST_LEFT."""
        return len(self._left)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event of this process."""
        kind, t, step = event.get("event"), _number(event.get("t")), _step(event.get("step"))
        if kind not in OF_PROCESSES:
            return
        if kind == "spawned" or event.get("attempt") != self._named:
            self._begin_attempt(event.get("attempt"))
        if t is None or not 0 <= t < END_OF_TIME:
            return
        if step != NO_STEP:
            self._lowest[kind][-1] = min(step, self._lowest[kind][-1])
        if kind == "step":
            self._take_step(event, t, step)
        elif kind == "log" and isinstance(event.get("values"), dict):
            weight = _weight(event.get("weight"))
            for name, value in event["values"].items():
                self._add("log", name, t, step, value, weight)
        elif kind == "usage":
            for name in USAGE:
                self._add("usage", name, t, step, event.get(name))

    def _begin_attempt(self, named: object) -> None:
        self._attempt += 1
        self._named = named
        self._staleness = (0, 0)
        for lowest in self._lowest.values():
            lowest.append(MOST)

    def _take_step(self, event: Mapping[str, Any], t: float, step: int) -> None:
        for name in FIGURES:
            if name in event:
                self._add("step", name, t, step, event[name], _weight(event.get("samples")) if name == "loss" else 1.0)
        if event.get("staleness"):
            self._take_staleness(event["staleness"], t, step)
        tables = event.get("tables")
        for table in tables if isinstance(tables, list) else ():
            if isinstance(table, dict) and isinstance(table.get("name"), str):
                self._add("table", table["name"], t, step, table.get("rows"))

    def _take_staleness(self, counts: object, t: float, step: int) -> None:
        """Add the mean staleness of the pushes since the event before; `counts` are those since the process began."""
        if not (isinstance(counts, list) and all(map(_is_count, counts))):
            return
        total, pushes = sum(age * count for age, count in counts), sum(count for _, count in counts)
        before, self._staleness = self._staleness, (total, pushes)
        new = pushes - before[1]
        if new > 0:
            self._add("step", "staleness", t, step, (total - before[0]) / new, float(new))

    def _add(self, of: str, name: str, t: float, step: int, value: object, weight: float = 1.0) -> None:
        number = value if type(value) is float else _number(value)
        if number is None:
            return
        key = (of, name[:NAME_CHARS])
        points = self._points.get(key)
        if points is None:
            if self._names[of] == MOST_NAMES:
                if len(self._left) < MOST_LEFT:
                    self._left.add(key)
                return
            self._names[of] += 1
            points = self._points[key] = Points()
        points.add(self._attempt, t, step, number, weight)

    def curves(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield the curves, of at most so many buckets each. Points that a roll back undid are a curve of their own."""
        steps = _lowest_later(self._lowest["step"])
        undone_from = {"log": list(map(min, steps, _lowest_later(self._lowest["log"])))}
        for (of, name), points in self._points.items():
            for part, undone in zip(points.split(undone_from.get(of, steps)), (False, True)):
                if part.times:
                    yield {"of": of, "name": name, "undone": undone, "buckets": part.buckets(most)}


def _lowest_later(lowest: Sequence[int]) -> list[int]:
    """Return, for each attempt, the lowest step of all later ones: steps from it on were made again."""
    later = [MOST]
    for step in reversed(lowest[1:]):
        later.append(min(step, later[-1]))
    return later[::-1]


def _number(value: object) -> float | None:
    """Return a number as a float, infinite if it is too large for one; None if it is not a number."""
    if type(value) is float:
        return value
    if type(value) is not int:  # True is no number
        return None
    try:
        return float(value)
    except OverflowError:
        return inf


def _step(value: object) -> int:
    return value if isinstance(value, int) and is_whole(value) and value >= 0 else NO_STEP


def _weight(value: object) -> float:
    """Return a weight that can be summed up; 1 if there is none."""
    weight = _number(value)
    return weight if weight is not None and 0 <= weight < MOST else 1.0


def _is_count(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(is_whole(item) and item >= 0 for item in pair)
