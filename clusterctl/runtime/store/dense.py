"""A lane's part of a dense table: values, rule state, and what the last step replaced.

A gradient is merged and applied part by part, each in cache-sized chunks. Every operation is elementwise, so neither
parts nor chunks nor the number of lanes show in the bits.

In sync mode a step writes into a second buffer, and `finish` swaps the two: `previous` then holds what step t
replaced, until the first part of t+1 is applied. A pull that names the older version gets it. In the other modes
values change in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.table.initializers import stream_key
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.sharding import PART_ELEMENTS, owned_elements
from clusterctl.runtime.table.spec import TableSpec

#: (weight, gradient) of one trainer.
Weighted = tuple[np.float32, Floats]

CHUNK_ELEMENTS = 65_536
_ZERO = np.float32(0)


class DenseTable:
    """The run of a dense table's elements that one lane owns (perhaps none).

    `allocate(count)` makes the buffers of the values; both are written before they are read.
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
        self.start, self.stop = owned_elements(spec.elements, spec.key, place, places)
        self.count = self.stop - self.start
        self.current, self.previous = (allocate or _lazy_pair)(self.count)
        self.state = [np.zeros(self.count, np.float32) for _ in range(spec.rule.states)]
        self.changed_by = -1
        self.parts = -(-self.count // PART_ELEMENTS)
        size = min(CHUNK_ELEMENTS, self.count)
        self._merged, self._scratch = np.empty(size, np.float32), np.empty(size, np.float32)
        key = stream_key(seed, spec.key)
        for a, b in _chunks(0, self.count):
            self.current[a:b] = spec.init.dense(key, self.start + a, b - a)

    def bounds(self, part: int) -> tuple[int, int]:
        """Where a part lies in the lane's run."""
        return part * PART_ELEMENTS, min((part + 1) * PART_ELEMENTS, self.count)

    def apply(self, part: int, grads: Sequence[Weighted], total: int, t: int, rule: Rule, in_place: bool) -> Floats:
        """Merges and applies a part of step `t` (from 1); `grads` by ascending rank. Returns the part's new values.

        The mean is `sum of weight * gradient from +0.0, divided by total`. Values go to the second buffer unless
        `in_place`. The result is a view.
        """
        start, stop = self.bounds(part)
        source, target = self.current, self.current if in_place else self.previous
        for a, b in _chunks(start, stop):
            merged, scratch = self._merged[: b - a], self._scratch[: b - a]
            merge(merged, scratch, [(w, g[a - start : b - start]) for w, g in grads], total)
            rule.update(source[a:b], [s[a:b] for s in self.state], merged, target[a:b], t)
        return target[start:stop]

    def keep(self, part: int) -> None:
        """The step leaves a part as it is."""
        start, stop = self.bounds(part)
        self.previous[start:stop] = self.current[start:stop]

    def finish(self, step: int) -> None:
        """All parts of `step` were applied to the second buffer: it is the current one from now on."""
        self.current, self.previous = self.previous, self.current
        self.changed_by = step

    def at(self, version: int | None) -> Floats:
        """The run after `version` steps, which is the newest (or None) or the one before."""
        return self.previous if version is not None and version <= self.changed_by else self.current

    def frozen(self) -> FrozenDense:
        return FrozenDense(self)


class FrozenDense:
    """A copy of a dense table, for a thread that writes it while training goes on."""

    def __init__(self, table: DenseTable) -> None:
        self.spec = table.spec
        self.start, self.stop, self.count = table.start, table.stop, table.count
        self.current = table.current.copy()
        self.state = [state.copy() for state in table.state]


def merge(merged: Floats, scratch: Floats, grads: Sequence[Weighted], total: int) -> None:
    """`merged = (0 + w0 * g0 + w1 * g1 + ...) / total`, each operation rounded to float32."""
    is_left_out, divisor = _common_weight(grads, total)
    weight, first = grads[0]
    if is_left_out:
        np.add(first, _ZERO, out=merged)
    else:
        np.multiply(first, weight, out=merged)
        merged += _ZERO  # the sum starts from +0.0, which turns a -0.0 round
    for each, grad in grads[1:]:
        if is_left_out:
            merged += grad
        else:
            np.multiply(grad, each, out=scratch)
            merged += scratch
    if divisor != 1:
        merged /= np.float32(divisor)


def _common_weight(grads: Sequence[Weighted], total: int) -> tuple[bool, float]:
    """Whether one power of two weighs all gradients, so that it is left out, and what remains to divide by.

    To multiply by a power of two changes no bit of a mantissa, so it may as well be left out on both sides.
    """
    weight = float(grads[0][0])
    is_power = weight >= 1 and math.frexp(weight)[0] == 0.5 and total % weight == 0
    if is_power and all(each == weight for each, _ in grads):
        return True, total / weight
    return False, float(total)


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(a, min(a + CHUNK_ELEMENTS, stop)) for a in range(start, stop, CHUNK_ELEMENTS)]


def _lazy_pair(count: int) -> tuple[Floats, Floats]:
    return np.empty(count, np.float32), np.empty(count, np.float32)
