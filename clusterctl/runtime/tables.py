"""A pserver's part of a dense table: values, rule state, and what the last step replaced.

Steps are merged and applied in cache-sized chunks. Every operation is elementwise, so neither chunks nor the
number of pservers show in the bits. `previous` holds what step t replaced until step t+1 is applied: a pull that
names the older version gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.initial import stream_key
from clusterctl.runtime.placement import owned_elements
from clusterctl.runtime.sparse import SparseTable
from clusterctl.runtime.spec import TableSpec

Floats = npt.NDArray[np.float32]

CHUNK_ELEMENTS = 65_536
#: A dense part on the wire is at most this long, and cut at its multiples from the start of the owned run.
PART_ELEMENTS = 4_194_304


@dataclass(frozen=True)
class DenseGrad:
    """One trainer's gradient of the elements that this pserver owns, in parts of PART_ELEMENTS."""

    weight: np.float32
    parts: Sequence[Floats]

    def chunk(self, start: int, stop: int) -> Floats:
        part = self.parts[start // PART_ELEMENTS]
        base = start - start % PART_ELEMENTS
        return part[start - base : stop - base]


class DenseTable:
    """The run of a dense table's elements that one pserver owns (perhaps none)."""

    def __init__(self, spec: TableSpec, pserver: int, pservers: int, seed: int) -> None:
        self.spec = spec
        self.start, self.stop = owned_elements(spec.elements, spec.key, pserver, pservers)
        self.count = self.stop - self.start
        self.current = np.empty(self.count, np.float32)
        self.previous: Floats = self.current[:0]
        self.state = [np.zeros(self.count, np.float32) for _ in range(spec.rule.states)]
        self.changed_by = -1
        key = stream_key(seed, spec.key)
        for a in range(0, self.count, CHUNK_ELEMENTS):
            b = min(a + CHUNK_ELEMENTS, self.count)
            self.current[a:b] = spec.init.dense(key, self.start + a, b - a)

    def apply(self, grads: Sequence[DenseGrad], total: np.float32, step: int) -> None:
        """Merges and applies the gradients of `step`; `grads` by ascending rank, at least one."""
        if len(self.previous) != self.count:
            self.previous = np.empty(self.count, np.float32)
        merged, scratch = np.empty((2, min(CHUNK_ELEMENTS, self.count)), np.float32)
        for a in range(0, self.count, CHUNK_ELEMENTS):
            b = min(a + CHUNK_ELEMENTS, self.count)
            grad = merged[: b - a]
            _merge(grad, scratch[: b - a], [(g.weight, g.chunk(a, b)) for g in grads], total)
            state = [s[a:b] for s in self.state]
            self.spec.rule.update(self.current[a:b], state, grad, self.previous[a:b], step + 1)
        self.current, self.previous = self.previous, self.current
        self.changed_by = step

    def at(self, version: int | None) -> Floats:
        """The owned elements after `version` steps, which is the newest (or None) or the one before."""
        return self.previous if version is not None and version <= self.changed_by else self.current

    def parts(self, values: Floats) -> list[tuple[int, Floats]]:
        """`values` as (offset in the whole table, part) in the cuts of the wire."""
        cuts = range(0, self.count, PART_ELEMENTS)
        return [(self.start + a, values[a : a + PART_ELEMENTS]) for a in cuts]


Table = Union[DenseTable, SparseTable]
Tables = dict[int, Table]


def _merge(merged: Floats, scratch: Floats, grads: Sequence[tuple[np.float32, Floats]], total: np.float32) -> None:
    weight, first = grads[0]
    np.multiply(first, weight, out=merged)
    merged += np.float32(0)  # the sum starts from +0.0, which turns a -0.0 round
    for weight, grad in grads[1:]:
        np.multiply(grad, weight, out=scratch)
        merged += scratch
    merged /= total
