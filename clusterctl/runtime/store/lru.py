"""The rows of each slot that were pushed longest ago, exactly, at little cost for each that goes.

A queue holds the rows as they stood when it was made, by slot, last push and id. A row that was pushed since stands
wrong in it and is passed over; but every row that stands right was pushed before all that do not. So the queue is made
anew, by sorting, only when one of its slots has run out (lazy deletion, as in a heap with stale entries).
"""

from __future__ import annotations

import numpy as np

from clusterctl.runtime.arrays import Array, Ids
from clusterctl.runtime.store.rows import RowStore
from clusterctl.runtime.table.sharding import SLOTS, slots_of

#: What column "seen" holds where there is no row, and where it is not known when the row was pushed.
GONE, UNKNOWN = -2, -3


class LruQueue:
    """Works on column `seen` of `store`, the step of each row's last push; GONE where a row went."""

    def __init__(self, store: RowStore, rows: int | None) -> None:
        self._store = store
        self._rows = rows
        self.forget()

    def forget(self) -> None:
        """Makes the queue anew when it is next needed: `seen` was changed by others than pushes."""
        self._positions = self._seen = np.empty(0, np.int64)
        self._next = self._end = np.zeros(SLOTS, np.int64)

    def pick(self, excess: Ids) -> Ids:
        """The positions of the `excess[slot]` rows of each slot that go first; marks them as GONE."""
        excess, picked = excess.copy(), [np.empty(0, np.int64)]
        while excess.any():
            if (self._next >= self._end)[excess > 0].any():
                self._rebuild()
            picked.append(self._advance(excess))
        return np.concatenate(picked)

    def _advance(self, excess: Ids) -> Ids:
        """Takes as many entries of the queue as are missing; lowers `excess` by those that stand right."""
        count = np.minimum(excess, self._end - self._next)
        slots = np.repeat(np.arange(SLOTS), count)
        entries = np.arange(count.sum()) + np.repeat(self._next - np.cumsum(count) + count, count)
        self._next = self._next + count
        positions = self._positions.take(entries)
        right = self._store.data["seen"].take(positions) == self._seen.take(entries)
        excess -= np.bincount(slots[right], minlength=SLOTS)
        picked: Ids = positions[right]
        self._store.data["seen"][picked] = GONE
        return picked

    def _rebuild(self) -> None:
        seen = self._store.data["seen"][: self._store.used]
        live = np.flatnonzero(seen != GONE)
        ids = self._store.ids.take(live)
        slots = slots_of(ids, self._rows)
        order = np.argsort(ids)
        for major in (seen.take(live), slots):
            order = order.take(np.argsort(_narrow(major.take(order)), kind="stable"))
        self._positions = live.take(order)
        self._seen = seen.take(self._positions)
        self._end = np.cumsum(np.bincount(slots, minlength=SLOTS))
        self._next = np.concatenate((np.zeros(1, np.int64), self._end[:-1]))


def _narrow(numbers: Ids) -> Array:
    """The same order in 16 bits where they suffice, which numpy sorts by radix: three times as fast as `np.lexsort`."""
    if not len(numbers):
        return numbers
    above: Ids = numbers - numbers.min()
    return above.astype(np.uint16) if above.max() < 2**16 else above
