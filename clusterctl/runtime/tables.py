"""A pserver's part of the tables: values, rule state, and what the last step replaced.

Steps are merged and applied in cache-sized chunks. Every operation is elementwise, so neither chunks nor the
number of pservers show in the bits. `previous` holds what step t replaced until step t+1 is applied: a pull that
names the older version gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.index import IdIndex
from clusterctl.runtime.initial import stream_key
from clusterctl.runtime.placement import Ids, owned_elements
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


@dataclass(frozen=True)
class SparseGrad:
    """One trainer's gradient of rows: `ids` strictly ascending, `rows` of shape (len(ids), dim)."""

    weight: np.float32
    ids: Ids
    rows: Floats


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


class SparseTable:
    """The rows that one pserver holds. A row is made by its first gradient; until then it has its initial value."""

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self.spec = spec
        self._key = stream_key(seed, spec.key)
        self._index = IdIndex()
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, spec.dim), np.float32)
        self._state = [np.empty((0, spec.dim), np.float32) for _ in range(spec.rule.states)]
        self._replaced_ids = np.empty(0, np.int64)
        self._replaced = self._rows
        self.changed_by = -1

    def __len__(self) -> int:
        return len(self._index)

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self)]

    def ids_at(self, positions: Ids) -> Ids:
        return self._ids.take(positions)

    def rows_at(self, positions: Ids) -> Floats:
        return self._rows.take(positions, axis=0)

    def pull(self, ids: Ids, version: int | None) -> Floats:
        """Rows of `ids`, (len(ids), dim), after `version` steps (None: the newest). Makes no row."""
        found = self._index.find(ids)
        absent = np.flatnonzero(found < 0)
        if absent.size == 0:
            out = self._rows.take(found, axis=0)
        else:
            out = np.empty((len(ids), self.spec.dim), np.float32)
            present = np.flatnonzero(found >= 0)
            out[present] = self._rows[found[present]]
            out[absent] = self.spec.init.rows(self._key, ids[absent], self.spec.dim)
        if version is not None and version <= self.changed_by and len(self._replaced_ids):
            at = np.searchsorted(self._replaced_ids, ids).clip(max=len(self._replaced_ids) - 1)
            hit = self._replaced_ids[at] == ids
            out[hit] = self._replaced[at[hit]]
        return out

    def put(self, ids: Ids, rows: Floats) -> None:
        """Sets the values of distinct ids (loading); their state starts from zero."""
        positions = self._positions(ids)
        self._rows[positions] = rows

    def apply(self, grads: Sequence[SparseGrad], total: np.float32, step: int) -> None:
        """Merges and applies the gradients of `step`; `grads` by ascending rank, at least one."""
        ids = grads[0].ids if len(grads) == 1 else np.unique(np.concatenate([g.ids for g in grads]))
        positions = self._positions(ids)
        places = [np.searchsorted(ids, g.ids) for g in grads]
        self._replaced_ids, self._replaced = np.array(ids), np.empty((len(ids), self.spec.dim), np.float32)
        rows = max(1, CHUNK_ELEMENTS // self.spec.dim)
        for a in range(0, len(ids), rows):
            b = min(a + rows, len(ids))
            grad = self._merged(grads, places, total, a, b)
            self._apply_rows(positions[a:b], self._replaced[a:b], grad, step)
        self.changed_by = step

    def _apply_rows(self, positions: Ids, old: Floats, grad: Floats, step: int) -> None:
        np.take(self._rows, positions, axis=0, out=old)
        state = [s.take(positions, axis=0) for s in self._state]
        new = np.empty_like(old)
        self.spec.rule.update(old, state, grad, new, step + 1)
        self._rows[positions] = new
        for kept, changed in zip(self._state, state):
            kept[positions] = changed

    def _merged(self, grads: Sequence[SparseGrad], places: Sequence[Ids], total: np.float32, a: int, b: int) -> Floats:
        """The mean gradient of the rows a to b of the union: from +0.0, by ascending rank, absent ones as zero."""
        merged = np.zeros((b - a, self.spec.dim), np.float32)
        for grad, place in zip(grads, places):
            low, high = np.searchsorted(place, (a, b))
            merged[place[low:high] - a] += grad.rows[low:high] * grad.weight
        merged /= total
        return merged

    def _positions(self, ids: Ids) -> Ids:
        found = self._index.find(ids)
        absent = np.flatnonzero(found < 0)
        if absent.size:
            fresh = ids[absent]
            made = self._index.add(fresh)
            self._reserve(len(self))
            found[absent] = made
            first, stop = int(made[0]), int(made[-1]) + 1
            self._ids[first:stop] = fresh
            self._rows[first:stop] = self.spec.init.rows(self._key, fresh, self.spec.dim)
            for state in self._state:
                state[first:stop] = 0
        return found

    def _reserve(self, count: int) -> None:
        if count <= len(self._ids):
            return
        size = max(count, 2 * len(self._ids), 1_024)  # pages that were never written cost no memory
        self._ids = _grown(self._ids, size)
        self._rows = _grown(self._rows, size)
        self._state = [_grown(state, size) for state in self._state]


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


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    out = np.empty((size, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
