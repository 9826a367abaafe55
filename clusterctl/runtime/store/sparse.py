"""The rows of an embedding that one lane holds: values, rule state, and the values before the last step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from clusterctl.runtime.arrays import Array, Floats, Ids, scatter
from clusterctl.runtime.store.eviction import RetentionEnforcer, columns_of, counts_of
from clusterctl.runtime.store.growable import completed
from clusterctl.runtime.store.index import make_index
from clusterctl.runtime.store.rows import Rows, RowStore
from clusterctl.runtime.table.initializers import stream_key
from clusterctl.runtime.table.spec import Column, TableSpec

_CHUNK_ELEMENTS = 65_536


class SparseGrad(NamedTuple):
    """One trainer's gradient of rows: `ids` strictly ascending, `rows` of shape (len(ids), dim)."""

    weight: np.float32
    ids: Ids
    rows: Floats


class SparseReader:
    """The rows of a table for writing to a file. Their positions, in no order, are valid until the next step."""

    def __init__(self, spec: TableSpec, rows: Rows, candidates: Rows | None) -> None:
        self.spec = spec
        self._read = rows
        self._candidates = candidates

    def __len__(self) -> int:
        return len(self._read)

    def live(self) -> Ids:
        """Return the positions of all rows, int64."""
        return self._read.live()

    @property
    def ids(self) -> Ids:
        """The ids of all rows."""
        return self.ids_at(self.live())

    def ids_at(self, positions: Ids) -> Ids:
        return self._read.ids.take(positions)

    def rows_at(self, positions: Ids) -> Floats:
        return self.read("rows", positions)

    def columns(self) -> list[Column]:
        """Return the columns: "rows", "state/0" and so on, then "seen" and "score" if the retention needs them."""
        return list(self._read.columns)

    def read(self, name: str, positions: Ids) -> Array:
        """Return a column of rows, (len(positions), width) or (len(positions),), a new array."""
        out: Array = self._read.data[name].take(positions, axis=0)
        return out

    def candidates(self) -> tuple[Ids, Ids]:
        """Return the ids that were pushed but not admitted yet, ascending, and the number of their pushes."""
        if self._candidates is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return counts_of(self._candidates)


class SparseTable(SparseReader):
    """The rows of one of the `lanes` that serve the table. Not thread-safe.

    A row is made by its first gradient, or when the table's retention admits it; until then it has its initial value.
    """

    def __init__(self, spec: TableSpec, seed: int, lane: int = 0, lanes: int = 1) -> None:
        values = [Column("rows", "F32", spec.dim)]
        values += [Column(f"state/{number}", "F32", spec.dim) for number in range(spec.rule.states)]
        self._value_names = [column.name for column in values]
        columns = values + columns_of(spec.retention)
        self._store = RowStore(columns, make_index(spec.rows, lane, lanes))
        self._key = stream_key(seed, spec.key)
        self._enforcer = (
            RetentionEnforcer(spec.retention, spec.rows, self._store) if spec.retention is not None else None
        )
        super().__init__(spec, self._store, self._enforcer.candidates.rows if self._enforcer is not None else None)
        self._replaced_ids = np.empty(0, np.int64)
        self._replaced: Floats = np.empty((0, spec.dim), np.float32)
        self._counts = dict.fromkeys(("looked_up", "hits", "admitted", "refused"), 0)
        self.changed_by = -1

    def pull(self, ids: Ids, version: int | None) -> Floats:
        """Return the rows of `ids`, (len(ids), dim), after `version` steps (None: the newest). Makes no row."""
        found = self._store.find(ids)
        out: Floats = self._store.data["rows"].take(found, axis=0, mode="clip")
        absent = np.flatnonzero(found < 0)
        if absent.size:
            out[absent] = self._initial(ids[absent])
        self._counts["looked_up"] += len(ids)
        self._counts["hits"] += len(ids) - len(absent)
        if version is not None and version <= self.changed_by and len(self._replaced_ids):
            at = np.searchsorted(self._replaced_ids, ids).clip(max=len(self._replaced_ids) - 1)
            hit = np.flatnonzero(self._replaced_ids.take(at) == ids)
            out[hit] = self._replaced.take(at.take(hit), axis=0)
        return out

    def restore(self, ids: Ids, columns: Mapping[str, Array]) -> None:
        """Set the columns of distinct ids, by name; a missing column starts as in a new row.

        Without "seen" a row counts as pushed once, just before the next step. Columns that this table's retention does
        not need are ignored.
        """
        positions = self._store.find(ids)
        absent = np.flatnonzero(positions < 0)
        positions[absent] = self._make(ids[absent])
        for name in columns.keys() & self._store.data.keys():
            self._store.data[name][positions] = columns[name]
        if self._enforcer is not None:
            self._enforcer.restored()

    def restore_candidates(self, ids: Ids, counts: Ids) -> None:
        """Set the number of pushes of distinct ids without a row."""
        if self._enforcer is not None:
            self._enforcer.candidates.restore(ids, counts)

    def apply(self, grads: Sequence[SparseGrad], total: np.float32, step: int, rate: float | None = None) -> None:
        """Merge and apply the gradients of `step`, by ascending rank, then remove the rows that the retention evicts.

        A `rate` replaces that of the rule. With a retention it must be called for every step, even one without
        gradients: rows expire by steps.
        """
        if self._enforcer is not None:
            self._enforcer.begin(step)
        grads = [grad for grad in grads if len(grad.ids)]
        if grads:
            self._update(grads, total, step, rate)
        if self._enforcer is not None:
            gone = self._enforcer.leaving(step)
            if gone.size:
                self._remember(self._store.ids.take(gone), self.rows_at(gone), step)
                self._store.remove(gone)

    def frozen(self) -> SparseReader:
        """Return a copy of the table for another thread to read: one copy of each array."""
        return completed(self.freezing())

    def freezing(self) -> tuple[SparseReader, Iterator[None]]:
        """Return a copy that is complete when the iterator ends: until then the table must not change."""
        rows, copying = self._store.freezing()
        if self._candidates is None:
            return SparseReader(self.spec, rows, None), copying
        candidates, counting = self._candidates.freezing()
        return SparseReader(self.spec, rows, candidates), chain(copying, counting)

    def counters(self) -> dict[str, int]:
        """Return `rows` and their `bytes` (with index and candidates) now; and numbers of ids since the start:
        `looked_up` and `hits` (with a row) in pulls, `admitted` and `refused` in steps, `expired` and `evicted`.
        """
        enforcer = self._enforcer
        more = {"expired": enforcer.expired, "evicted": enforcer.evicted} if enforcer else {"expired": 0, "evicted": 0}
        size = self._store.bytes + (enforcer.candidates.bytes if enforcer else 0)
        return {"rows": len(self), "bytes": size, **self._counts, **more}

    def _update(self, grads: Sequence[SparseGrad], total: np.float32, step: int, rate: float | None) -> None:
        ids, places = _union(grads)
        positions, kept = self._positions(ids, places, step)
        dim, names = self.spec.dim, self._value_names
        self._replaced_ids, self._replaced = ids[kept], np.empty((len(positions), dim), np.float32)
        arrays = [self._store.data[name] for name in names]
        rows = max(1, _CHUNK_ELEMENTS // dim)
        for a in range(0, len(ids), rows):
            b = min(a + rows, len(ids))
            grad = _merged(grads, places, total, a, b)
            low, high = (a, b) if len(kept) == len(ids) else np.searchsorted(kept, (a, b))
            if high - low < b - a:
                grad = grad.take(kept[low:high] - a, axis=0)
            self._apply_rows(arrays, positions[low:high], self._replaced[low:high], grad, step, rate)
        if len(positions):
            self.changed_by = step

    def _apply_rows(
        self, arrays: list[Array], positions: Ids, old: Floats, grad: Floats, step: int, rate: float | None
    ) -> None:
        np.take(arrays[0], positions, axis=0, out=old, mode="clip")  # any other mode buffers the output
        state = [array.take(positions, axis=0) for array in arrays[1:]]
        new = np.empty_like(old)
        self.spec.rule.update(old, state, grad, new, step + 1, rate)
        for array, changed in zip(arrays, [new, *state]):
            scatter(array, positions, changed)

    def _positions(self, ids: Ids, places: Sequence[Ids], step: int) -> tuple[Ids, Ids]:
        """Return the positions of the admitted ids, making missing rows, and the places of these ids in `ids`."""
        positions = self._store.find(ids)
        absent = np.flatnonzero(positions < 0)
        if self._enforcer is None:
            positions[absent] = self._make(ids[absent])
            self._counts["admitted"] += len(absent)
            return positions, np.arange(len(ids), dtype=np.int64)
        sightings = np.bincount(np.concatenate(places), minlength=len(ids))
        admitted = self._enforcer.admitted(ids[absent], sightings[absent])
        fresh = absent[admitted]
        positions[fresh] = self._make(ids[fresh])
        self._counts["admitted"] += len(fresh)
        self._counts["refused"] += len(absent) - len(fresh)
        kept = np.flatnonzero(positions >= 0)
        self._enforcer.pushed(positions[kept], sightings[kept], positions[fresh], step)
        return positions[kept], kept

    def _make(self, ids: Ids) -> Ids:
        if not len(ids):
            return np.empty(0, np.int64)
        positions = self._store.make(ids)
        first, *states = [self._store.data[name] for name in self._value_names]
        rows = max(1, _CHUNK_ELEMENTS // self.spec.dim)
        for a in range(0, len(ids), rows):
            scatter(first, positions[a : a + rows], self._initial(ids[a : a + rows]))
        for state, start in zip(states, self.spec.rule.starts):
            state[positions] = start
        if self._enforcer is not None:
            self._enforcer.made(positions)
        return positions

    def _initial(self, ids: Ids) -> Floats:
        return self.spec.init.rows(self._key, ids, self.spec.dim)

    def _remember(self, ids: Ids, rows: Floats, step: int) -> None:
        """Add rows to those that this step replaced. If a row is added twice, its older value comes first."""
        if self.changed_by != step:
            self._replaced_ids, self._replaced = self._replaced_ids[:0], self._replaced[:0]
        every = np.concatenate((self._replaced_ids, ids))
        order = np.argsort(every, kind="stable")
        self._replaced_ids = every.take(order)
        self._replaced = np.concatenate((self._replaced, rows)).take(order, axis=0)
        self.changed_by = step


def _union(grads: Sequence[SparseGrad]) -> tuple[Ids, list[Ids]]:
    """Return the distinct ids of all gradients, ascending, and each gradient's places among them."""
    if len(grads) == 1:
        return np.array(grads[0].ids), [np.arange(len(grads[0].ids), dtype=np.int64)]
    every = np.concatenate([grad.ids for grad in grads])
    order = np.argsort(every, kind="stable")  # merges ascending runs
    ordered = every.take(order)
    first = np.ones(len(every), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    place = np.empty(len(every), np.int64)
    place[order] = np.cumsum(first) - 1
    return ordered[first], np.split(place, np.cumsum([len(grad.ids) for grad in grads])[:-1])


def _merged(grads: Sequence[SparseGrad], places: Sequence[Ids], total: np.float32, a: int, b: int) -> Floats:
    """Return the mean gradient of rows a to b of the union: from +0.0, by ascending rank, missing rows as zero."""
    if len(grads) == 1:
        merged: Floats = grads[0].rows[a:b] * grads[0].weight
        merged += np.float32(0)  # the sum starts from +0.0, so that -0.0 becomes +0.0
    else:
        merged = np.zeros((b - a, grads[0].rows.shape[1]), np.float32)
        for grad, place in zip(grads, places):
            low, high = np.searchsorted(place, (a, b))
            at = place[low:high] - a
            part = merged.take(at, axis=0)
            part += grad.rows[low:high] * grad.weight
            scatter(merged, at, part)
    merged /= total
    return merged
