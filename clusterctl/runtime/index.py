"""A vectorised open-addressing index from int64 ids to row positions: linear probing, numpy only."""

from __future__ import annotations

import numpy as np

from clusterctl.runtime.placement import Bits, Ids, mix64

_FILL = 0.5


class IdIndex:
    """Maps distinct int64 ids to positions 0, 1, 2, ... in the order they were added. Not thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._make(1_024)

    def __len__(self) -> int:
        return self._count

    def find(self, ids: Ids) -> Ids:
        """The position of each id, -1 where it is absent."""
        probe = self._home(ids)
        found = self._positions.take(probe)
        todo = np.flatnonzero((found >= 0) & (self._ids.take(probe) != ids))
        while todo.size:
            probe[todo] = (probe[todo] + 1) & self._mask
            at = probe[todo]
            found[todo] = self._positions[at]
            todo = todo[(found[todo] >= 0) & (self._ids[at] != ids[todo])]
        return found

    def add(self, ids: Ids) -> Ids:
        """Adds ids that must be distinct and absent; returns their positions."""
        first, self._count = self._count, self._count + len(ids)
        added = np.arange(first, self._count, dtype=np.int64)
        if self._count > _FILL * len(self._ids):
            self._grow()
        self._place(ids, added)
        return added

    def _grow(self) -> None:
        old_ids, old_positions = self._ids, self._positions
        size = len(old_ids)
        while self._count > _FILL * size:
            size *= 2
        self._make(size)
        used = old_positions >= 0
        self._place(old_ids[used], old_positions[used])

    def _make(self, size: int) -> None:
        self._ids = np.zeros(size, np.int64)
        self._positions = np.full(size, -1, np.int64)
        self._mask = np.int64(size - 1)
        self._shift = np.uint64(64 - (size.bit_length() - 1))

    def _home(self, ids: Ids) -> Ids:
        # The high bits: the low ones choose the slot, so on one pserver they hardly vary.
        hashed: Bits = mix64(ids.view(np.uint64)) >> self._shift
        return hashed.view(np.int64)

    def _place(self, ids: Ids, positions: Ids) -> None:
        probe = self._home(ids)
        todo = np.arange(len(ids), dtype=np.int64)
        while todo.size:
            at = probe[todo]
            free = self._positions[at] < 0
            claim, cell = todo[free], at[free]
            self._positions[cell] = positions[claim]  # of several claims on one cell the last stays
            won = self._positions[cell] == positions[claim]
            self._ids[cell[won]] = ids[claim[won]]
            todo = np.concatenate((todo[~free], claim[~won]))
            probe[todo] = (probe[todo] + 1) & self._mask
