"""Row storage by id: columns, positions and free positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.arrays import Array, Ids
from clusterctl.runtime.store.growable import GrowableArray, copied
from clusterctl.runtime.store.index import MAX_POSITIONS, Index
from clusterctl.runtime.table.spec import Column

_DTYPES: dict[str, npt.DTypeLike] = {"F32": np.float32, "I64": np.int64}


class Rows:
    """Rows for reading: the first `used` positions were ever taken; those in `free` hold no row."""

    def __init__(self, columns: Sequence[Column], ids: Ids, data: dict[str, Array], used: int, free: Ids) -> None:
        self.columns = list(columns)
        self.ids = ids
        self.data = data
        self.used = used
        self.free = free

    def __len__(self) -> int:
        return self.used - len(self.free)

    def live(self) -> Ids:
        """Return the positions of all rows, ascending."""
        if not len(self.free):
            return np.arange(self.used, dtype=np.int64)
        taken = np.ones(self.used, bool)
        taken[self.free] = False
        return np.flatnonzero(taken)

    def freezing(self) -> tuple[Rows, Iterator[None]]:
        """Return a copy that is complete when the iterator ends: until then the rows must not change."""
        data = {name: np.empty_like(array[: self.used]) for name, array in self.data.items()}
        copy = Rows(self.columns, np.empty_like(self.ids[: self.used]), data, self.used, self.free)
        return copy, self._copying_to(copy)

    def _copying_to(self, copy: Rows) -> Iterator[None]:
        yield from copied(self.ids[: self.used], copy.ids)
        for name, array in copy.data.items():
            yield from copied(self.data[name][: self.used], array)


class RowStore(Rows):
    """Rows that can be added and removed. `data[name]` is a column, valid until the next `make`. Not thread-safe."""

    def __init__(self, columns: Sequence[Column], index: Index) -> None:
        super().__init__(columns, np.empty(0, np.int64), {}, 0, np.empty(0, np.int64))
        self._index = index
        self._growing_ids = GrowableArray(np.int64)
        self._growing = {c.name: GrowableArray(_DTYPES[c.dtype], c.width) for c in columns}
        self._refresh_views()

    @property
    def bytes(self) -> int:
        """The size of the rows and their index, without room to grow."""
        per_row = self.ids.itemsize + sum(array.nbytes // len(array) for array in self.data.values())
        return self.used * per_row + self._index.bytes

    def find(self, ids: Ids) -> Ids:
        """Return the position of each id, -1 if it has none."""
        return self._index.find(ids, self.ids)

    def make(self, ids: Ids) -> Ids:
        """Return positions for new ids, distinct and absent. The caller must set their columns."""
        reused = min(len(ids), len(self.free))
        fresh = len(ids) - reused
        if self.used + fresh > MAX_POSITIONS:
            raise MemoryError(f"one lane can hold at most {MAX_POSITIONS} rows")
        self._reserve(self.used + fresh)
        rest, again = np.split(self.free, [len(self.free) - reused])
        positions = np.concatenate((again, np.arange(self.used, self.used + fresh, dtype=np.int64)))
        self.free, self.used = rest, self.used + fresh
        self.ids[positions] = ids
        self._index.add(ids, positions, self.ids)
        return positions

    def remove(self, positions: Ids) -> None:
        """Remove rows at distinct positions. Their data stays until the positions are reused."""
        self._index.remove(self.ids.take(positions), positions)
        self.free = np.concatenate((self.free, positions))

    def _reserve(self, count: int) -> None:
        if count <= self._room:
            return
        self.ids = np.empty(0, np.int64)
        self.data.clear()
        try:
            for growing in (self._growing_ids, *self._growing.values()):
                growing.reserve(count)
        finally:
            self._refresh_views()

    def _refresh_views(self) -> None:
        self.ids = self._growing_ids.array
        self.data.update({name: growing.array for name, growing in self._growing.items()})
        self._room = min(len(array) for array in (self.ids, *self.data.values()))
