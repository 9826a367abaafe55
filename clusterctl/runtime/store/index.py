"""The index from int64 ids to row positions, vectorised with numpy alone.

`HashIndex` takes any ids: open addressing with linear probing (Knuth, The Art of Computer Programming 3, 6.4), where
a cell holds a position only and the ids are stored beside the rows (`keys`, at their positions). `DirectIndex` is for a
table with a known number of `rows`: one cell per possible id, in memory that costs nothing until it is touched.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.arrays import Bits, Ids
from clusterctl.runtime.table.sharding import SLOTS, mix64

Cells = npt.NDArray[np.int32]

MAX_POSITIONS = 2**31 - 2
_FILL, _FILL_AFTER_GROWTH = 0.5, 0.4
_LEAST_CELLS = 1_024
#: A bounded table with more rows than this is hashed: a few rows scattered over many pages would cost a page each.
_DIRECT_ROWS = 2**25
_CHUNK = 2**18
_SLOT_BITS, _SLOT_MASK = np.int64(SLOTS.bit_length() - 1), np.int64(SLOTS - 1)
_EMPTY, _REMOVED = 0, -1  # a cell with position p holds p + 1, so that untouched memory is empty


class Index(Protocol):
    """Maps distinct ids to positions below MAX_POSITIONS. `keys[p]` is the id at position p, kept by the caller."""

    @property
    def bytes(self) -> int: ...

    def find(self, ids: Ids, keys: Ids) -> Ids:
        """Return the position of each id, -1 if it is absent; `keys` must not be empty."""

    def add(self, ids: Ids, positions: Ids, keys: Ids) -> None:
        """Add ids, distinct and absent; `keys` has them already."""

    def remove(self, ids: Ids, positions: Ids) -> None:
        """Remove ids that are present at `positions`."""


def make_index(rows: int | None, lane: int, lanes: int) -> Index:
    """Make the index of a lane (one of `lanes`) of a table bounded by `rows`, or unbounded if None."""
    if rows is not None and rows // lanes <= _DIRECT_ROWS:
        return DirectIndex(rows, lane, lanes)
    return HashIndex()


class DirectIndex:
    """One cell per id of the lane: ids of slots lane, lane + lanes, ... Ids of other lanes are not allowed."""

    def __init__(self, rows: int, lane: int, lanes: int) -> None:
        self._lanes = np.int64(lanes)
        self._per_round = np.int64(-(-(SLOTS - lane) // lanes))  # ids of this lane among any SLOTS consecutive ones
        self._cells: Cells = np.zeros(-(-rows // SLOTS) * int(self._per_round), np.int32)

    @property
    def bytes(self) -> int:
        return int(self._cells.nbytes)

    def find(self, ids: Ids, keys: Ids) -> Ids:
        found = self._cells.take(self._local(ids)).astype(np.int64)
        found -= 1
        return found

    def add(self, ids: Ids, positions: Ids, keys: Ids) -> None:
        self._cells[self._local(ids)] = positions + 1

    def remove(self, ids: Ids, positions: Ids) -> None:
        self._cells[self._local(ids)] = _EMPTY

    def _local(self, ids: Ids) -> Ids:
        if self._lanes == 1:
            return ids
        local: Ids = (ids >> _SLOT_BITS) * self._per_round + (ids & _SLOT_MASK) // self._lanes
        return local


class HashIndex:
    """Open addressing over a power of two of cells, at most half of them in use. Not thread-safe."""

    def __init__(self) -> None:
        self._live = 0
        self._make(_LEAST_CELLS)

    @property
    def bytes(self) -> int:
        return int(self._cells.nbytes)

    def find(self, ids: Ids, keys: Ids) -> Ids:
        probe = self._home(ids)
        cell = self._cells.take(probe)
        found = cell.astype(np.int64)
        found -= 1
        todo = np.flatnonzero((cell != _EMPTY) & ((keys.take(found, mode="clip") != ids) | (cell < 0)))
        while todo.size:
            at = (probe.take(todo) + 1) & self._mask
            probe[todo] = at
            cell = self._cells.take(at)
            found[todo] = position = cell.astype(np.int64) - 1
            other = (keys.take(position, mode="clip") != ids.take(todo)) | (cell < 0)
            todo = todo[(cell != _EMPTY) & other]
        return found

    def add(self, ids: Ids, positions: Ids, keys: Ids) -> None:
        self._live += len(ids)
        if self._filled + len(ids) > _FILL * len(self._cells):
            self._rebuild(keys)
        for a in range(0, len(ids), _CHUNK):
            self._place(ids[a : a + _CHUNK], positions[a : a + _CHUNK])

    def remove(self, ids: Ids, positions: Ids) -> None:
        self._live -= len(ids)
        probe, wanted = self._home(ids), positions + 1
        todo = np.flatnonzero(self._cells.take(probe) != wanted)
        while todo.size:
            probe[todo] = (probe.take(todo) + 1) & self._mask
            todo = todo[self._cells.take(probe.take(todo)) != wanted.take(todo)]
        self._cells[probe] = _REMOVED

    def _rebuild(self, keys: Ids) -> None:
        """Make room and clear removed cells; in chunks, so that a large table needs little scratch memory."""
        old = self._cells
        size = len(old)
        while self._live > _FILL_AFTER_GROWTH * size:
            size *= 2
        self._make(size)
        for a in range(0, len(old), _CHUNK):
            cells = old[a : a + _CHUNK]
            positions = cells[cells > _EMPTY].astype(np.int64) - 1
            self._place(keys.take(positions), positions)

    def _make(self, size: int) -> None:
        self._filled = 0  # cells that are not empty: probing continues past removed ones
        self._cells: Cells = np.zeros(size, np.int32)
        self._mask = np.int64(size - 1)
        self._shift = np.uint64(64 - (size.bit_length() - 1))

    def _home(self, ids: Ids) -> Ids:
        # The high bits: the low bits choose the slot, so they hardly vary within one lane.
        hashed: Bits = mix64(ids.view(np.uint64)) >> self._shift
        return hashed.view(np.int64)

    def _place(self, ids: Ids, positions: Ids) -> None:
        probe, cells = self._home(ids), (positions + 1).astype(np.int32)
        todo = np.arange(len(ids), dtype=np.int64)
        while todo.size:
            at = probe.take(todo)
            before = self._cells.take(at)
            free = before <= _EMPTY
            claim, cell = todo[free], at[free]
            self._cells[cell] = cells.take(claim)  # the last of several claims on one cell wins
            won = self._cells.take(cell) == cells.take(claim)
            self._filled += int(np.count_nonzero(won & (before[free] == _EMPTY)))
            todo = np.concatenate((todo[~free], claim[~won]))
            probe[todo] = (probe.take(todo) + 1) & self._mask
