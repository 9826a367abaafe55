"""A lane's part of a dense table: values, rule state, and the values before the last step.

A gradient is merged and applied part by part, each in cache-sized chunks. Every operation is elementwise, so the bits
depend neither on parts nor on chunks nor on the number of lanes.

In sync mode a step writes to a second buffer, and `finish` swaps the two: `previous` then holds the values that step t
replaced, until the first part of t+1 is applied. A pull that names the older version gets them. In the other modes
values change in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.store.growable import completed, copied
from clusterctl.runtime.table.initializers import stream_key
from clusterctl.runtime.table.quantization import Bytes
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.sharding import PART_ELEMENTS, owned_elements
from clusterctl.runtime.table.spec import TableSpec

#: (weight, gradient) of one trainer.
Weighted = tuple[np.float32, Floats]

CHUNK_ELEMENTS = 65_536
_ZERO = np.float32(0)


class DenseTable:
    """The run of a dense table's elements that one lane owns (perhaps empty).

    `allocate(count)` makes the two buffers of the values; both are written before they are read. `changes` has by part
    the last step's changes in bytes, if trainers get these instead of the new values.
    """

    def __init__(
        self,
        spec: TableSpec,
        place: int,
        places: int,
        seed: int,
        allocate: Callable[[int], tuple[Floats, Floats]] | None = None,
    ) -> None:
        self.spec = spec
        self.key = spec.key
        self.start, self.stop = owned_elements(spec.elements, spec.first_place, place, places)
        self.count = self.stop - self.start
        self.current, self.previous = (allocate or _lazy_pair)(self.count)
        self.state = filled(spec.rule, self.count)
        self.changes: dict[int, Bytes] = {}
        self.changed_by = -1
        self.assigned: Floats | None = None
        self.parts = -(-self.count // PART_ELEMENTS)
        size = min(CHUNK_ELEMENTS, self.count)
        self._merged, self._scratch = np.empty(size, np.float32), np.empty(size, np.float32)
        key = stream_key(seed, spec.key)
        for a, b in _chunks(0, self.count):
            self.current[a:b] = spec.init.dense(key, self.start + a, b - a)

    @property
    def values(self) -> Floats:
        """The values that rules update and models save."""
        return self.current if self.assigned is None else self.assigned

    @property
    def base(self) -> Floats | None:
        """The values that trainers hold, if they differ from `values`; else None."""
        return None

    def fill(self, start: int, values: Floats, base: Floats | None = None) -> None:
        """Set elements of the run, before the first step. Base is that of a checkpoint, without one the values."""
        self.current[start : start + len(values)] = values

    def assign(self, start: int, values: Floats) -> None:
        """Set elements of the run that the next step is to begin with, and models to save; in sync mode.

        Pulls still get the values after the last step, from which restarted trainers compute their changes again.
        """
        if self.assigned is None:
            self.assigned = self.current.copy()
        self.assigned[start : start + len(values)] = values

    def bounds(self, part: int) -> tuple[int, int]:
        """Return the start and stop of a part in the lane's run."""
        return part * PART_ELEMENTS, min((part + 1) * PART_ELEMENTS, self.count)

    def apply(
        self,
        part: int,
        grads: Sequence[Weighted],
        total: int,
        t: int,
        rule: Rule,
        in_place: bool,
        rate: float | None = None,
    ) -> Floats:
        """Merge and apply a part of step `t` (from 1); `grads` by ascending rank. Return the part's new values, a view.

        The mean is `sum of weight * gradient from +0.0, divided by total`. Values go to the second buffer unless
        `in_place`. A `rate` replaces that of the rule.
        """
        start, stop = self.bounds(part) if part else (0, min(PART_ELEMENTS, self.count))
        source = self.values
        target = source if in_place else self.previous
        is_whole = stop - start <= CHUNK_ELEMENTS
        for a in range(start, stop, CHUNK_ELEMENTS):
            b = min(a + CHUNK_ELEMENTS, stop)
            own = grads if is_whole else [(weight, grad[a - start : b - start]) for weight, grad in grads]
            merged, state = self._merged[: b - a], [array[a:b] for array in self.state] if self.state else ()
            merge(merged, self._scratch[: b - a], own, total)
            rule.update(source[a:b], state, merged, target[a:b], t, rate)
        return target[start:stop]

    def keep(self, part: int) -> None:
        """Keep a part unchanged in this step."""
        start, stop = self.bounds(part)
        self.previous[start:stop] = self.values[start:stop]

    def finish(self, step: int) -> None:
        """Make the second buffer current, after all parts of `step` were applied to it."""
        self.current, self.previous, self.assigned = self.previous, self.current, None
        self.changed_by = step

    def at(self, version: int | None) -> Floats:
        """Return the run after `version` steps: the newest (or None) or the one before."""
        return self.previous if version is not None and version <= self.changed_by else self.current

    def frozen(self) -> FrozenDense:
        """Return a copy of the table for another thread to read."""
        return completed(self.freezing())

    def freezing(self) -> tuple[FrozenDense, Iterator[None]]:
        """Return a copy that is complete when the iterator ends: until then the table must not change."""
        copy = FrozenDense(self)
        return copy, copy.copying(self)


def filled(rule: Rule, count: int) -> list[Floats]:
    """Return the arrays of state of a new table of `count` elements."""
    return [np.full(count, start, np.float32) if start else np.zeros(count, np.float32) for start in rule.starts]


class FrozenDense:
    """A copy of a dense table, for a thread that writes it while training continues; empty until `copying` ends."""

    def __init__(self, table: DenseTable) -> None:
        self.spec = table.spec
        self.start, self.stop, self.count = table.start, table.stop, table.count
        self.current = np.empty(table.count, np.float32)
        self.base = None if table.base is None else np.empty(table.count, np.float32)
        self.state = [np.empty(table.count, np.float32) for _ in table.state]

    def copying(self, table: DenseTable) -> Iterator[None]:
        """Copy the table, a slice with each step."""
        yield from copied(table.values, self.current)
        if self.base is not None and table.base is not None:
            yield from copied(table.base, self.base)
        for state, copy in zip(table.state, self.state):
            yield from copied(state, copy)


def merge(merged: Floats, scratch: Floats, grads: Sequence[Weighted], total: int) -> None:
    """Compute `merged = (0 + w0 * g0 + w1 * g1 + ...) / total`, each operation rounded to float32."""
    first_weight, first = grads[0]
    is_omitted, divisor = _common_weight(grads, total) if total > 1 else (True, 1)
    if is_omitted:
        np.add(first, _ZERO, out=merged)
    else:
        np.multiply(first, first_weight, out=merged)
        merged += _ZERO  # the sum starts from +0.0, so that -0.0 becomes +0.0
    for weight, grad in grads[1:]:
        if is_omitted:
            merged += grad
        else:
            np.multiply(grad, weight, out=scratch)
            merged += scratch
    if divisor != 1:
        merged /= np.float32(divisor)


def _common_weight(grads: Sequence[Weighted], total: int) -> tuple[bool, float]:
    """Return True if all gradients have the same power of two as weight, so that it is omitted; and the divisor left.

    Multiplying by a power of two changes no bit of a mantissa, so it may be omitted on both sides.
    """
    first = grads[0][0]
    weight = float(first)
    if weight < 1 or math.frexp(weight)[0] != 0.5 or total % weight:
        return False, float(total)
    for each, _ in grads:
        if each is not first and each != first:
            return False, float(total)
    return True, total / weight


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(a, min(a + CHUNK_ELEMENTS, stop)) for a in range(start, stop, CHUNK_ELEMENTS)]


def _lazy_pair(count: int) -> tuple[Floats, Floats]:
    return np.empty(count, np.float32), np.empty(count, np.float32)
