"""Reduce the events of a process to curves, so that a view of a long run costs kilobytes.

A curve has at most as many buckets as were asked for. They cover equal intervals between its first and its last point,
and none is empty. If it has no more points than that, each is a bucket. In JSON a bucket is an array of its fields.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import le
from typing import Any

from clusterctl.common.curves import NO_STEP, Bucket, bucket
from clusterctl.common.points import FIGURES, ProcessEvents, tables_of
from clusterctl.common.safe_json import MOST, is_number
from clusterctl.common.schema import END_OF_TIME

LEFT_OUT = "lost"  # a count since the process began
MOST_NAMES = 200  # of the metrics that a process logs, and of its tables
MOST_LEFT = 10_000  # names left out that are counted
NAME_CHARS = 200

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

    def _bucket(self, first: int, end: int) -> Bucket:
        return bucket(self.times[first:end], self.steps[first:end], self.values[first:end], self.weights[first:end])

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


class ProcessCurves:
    """Collects the points of one process from its events, in the order in which they were recorded."""

    def __init__(self) -> None:
        self._points: dict[Key, Points] = {}
        self._names = Counter[str]()
        self._left: set[Key] = set()
        self._events = ProcessEvents()

    @property
    def left(self) -> int:
        """The number of names that were left out, up to MOST_LEFT."""
        return len(self._left)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event of this process."""
        kind: object = event.get("event")
        t: Any = event.get("t")
        if not isinstance(kind, str) or kind not in FIGURES:
            return
        step = self._events.add(event)
        if kind == "pass" or not is_number(t) or not 0 <= t < END_OF_TIME:
            return
        step = NO_STEP if step is None else step
        for name, value, weight in self._events.values(event):
            if name != LEFT_OUT or kind == "log":
                self._add(kind, name, t, step, value, weight)
        if kind == "step" and "tables" in event:
            for name, counts in tables_of(event):
                if "rows" in counts:
                    self._add("table", name, t, step, counts["rows"], 1.0)

    def _add(self, of: str, name: str, t: float, step: int, value: float, weight: float) -> None:
        key = (of, name[:NAME_CHARS])
        points = self._points.get(key)
        if points is None:
            if self._names[of] == MOST_NAMES:
                if len(self._left) < MOST_LEFT:
                    self._left.add(key)
                return
            self._names[of] += 1
            points = self._points[key] = Points()
        points.add(self._events.attempt, t, step, value, weight)

    def curves(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield the curves, of at most so many buckets each. Points that a roll back undid are a curve of their own."""
        undone_from = self._events.undone_from()
        for (of, name), points in self._points.items():
            for part, undone in zip(points.split(undone_from["step" if of == "table" else of]), (False, True)):
                if part.times:
                    yield {"of": of, "name": name, "undone": undone, "buckets": part.buckets(most)}
