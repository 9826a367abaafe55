"""Enforce a `Retention` on the rows of one lane: admission of ids, and removal of rows after a step.

Every decision depends on one id or one slot only, so it is the same however slots are distributed over lanes.
"""

from __future__ import annotations

import numpy as np

from clusterctl.runtime.arrays import Array, Bits, Ids
from clusterctl.runtime.store.index import HashIndex
from clusterctl.runtime.store.lru import GONE, UNKNOWN, LruQueue
from clusterctl.runtime.store.rows import Rows, RowStore
from clusterctl.runtime.table.retention import Age, Fraction, Retention, Score, Sightings
from clusterctl.runtime.table.sharding import SLOTS, mix64, slots_of
from clusterctl.runtime.table.spec import Column

#: If more ids of one slot wait for admission, a sweep halves their counts and drops those at zero.
CANDIDATES_PER_SLOT = 4_096
_CHUNK = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POWERS = 4_096


def columns_of(retention: Retention | None) -> list[Column]:
    """Return the columns that a retention needs: `seen`, the step of the last push, and `score` as of that step."""
    if retention is None or (retention.expire is None and retention.max_rows is None):
        return []
    seen = Column("seen", "I64")
    return [seen, Column("score", "F32")] if isinstance(retention.expire, Score) else [seen]


class RetentionEnforcer:
    """Enforces the retention of one lane's rows in `store`. `rows` bounds the table, or is None. Not thread-safe."""

    def __init__(self, retention: Retention, rows: int | None, store: RowStore) -> None:
        self._retention = retention
        self._rows = rows
        self._store = store
        self._held = np.zeros(SLOTS, np.int64)
        self._powers = DecayPowers(retention.expire.decay) if isinstance(retention.expire, Score) else None
        self._lru = LruQueue(store, rows) if retention.max_rows is not None else None
        self._shares = retention.slot_shares()
        self._is_restored = False
        self.candidates = Candidates()
        self.expired = self.evicted = 0

    def admitted(self, ids: Ids, sightings: Ids) -> Array:
        """Return the ids, of these distinct ones without a row, that get a row in this step: bool of (len(ids),)."""
        admit = self._retention.admit
        if isinstance(admit, Sightings):
            return self.candidates.seen(ids, sightings, admit.count)
        if isinstance(admit, Fraction):
            hashed: Bits = mix64(ids.view(np.uint64) + _GOLDEN) >> np.uint64(11)
            chosen: Array = hashed.astype(np.float64) * 2.0**-53 < admit.share
            return chosen
        return np.ones(len(ids), bool)

    def made(self, positions: Ids) -> None:
        """Record that rows were made, as if pushed once at an unknown step."""
        self._held += self._by_slot(positions)
        data = self._store.data
        if "seen" in data:
            data["seen"][positions] = UNKNOWN
        if "score" in data:
            data["score"][positions] = 1

    def restored(self) -> None:
        """Record that columns of existing rows may have changed."""
        self._is_restored = True
        if self._lru is not None:
            self._lru.forget()

    def begin(self, step: int) -> None:
        """Begin a step. Rows that were loaded, so that no push of them is known, count as pushed just before `step`."""
        if self._is_restored and "seen" in self._store.data:
            seen = self._store.data["seen"][: self._store.used]
            seen[seen == UNKNOWN] = step - 1
        self._is_restored = False

    def pushed(self, positions: Ids, sightings: Ids, fresh: Ids, step: int) -> None:
        """Record the number of pushes of `step` that named the rows at `positions`; those at `fresh` are new."""
        data = self._store.data
        if self._powers is not None:
            data["score"][fresh] = 0
            worth = self._powers.of(step - data["seen"].take(positions))
            data["score"][positions] = data["score"].take(positions) * worth + sightings.astype(np.float32)
        if "seen" in data:
            data["seen"][positions] = step

    def leaving(self, step: int) -> Ids:
        """Return the positions of the rows to remove after `step`; the caller must remove them."""
        expired = evicted = np.empty(0, np.int64)
        if (step + 1) % self._retention.sweep_every == 0:
            self.candidates.trim(self._rows)
            expired = self._sweep(step)
        if self._lru is not None and (self._held > self._shares).any():
            evicted = self._lru.pick(np.maximum(self._held - self._shares, 0))
            self._held -= self._by_slot(evicted)
        self.expired += len(expired)
        self.evicted += len(evicted)
        return np.concatenate((expired, evicted))

    def _sweep(self, step: int) -> Ids:
        if self._retention.expire is None:
            return np.empty(0, np.int64)
        seen = self._store.data["seen"]
        cuts = range(0, self._store.used, _CHUNK)
        gone = [np.flatnonzero(self._is_over(a, min(a + _CHUNK, self._store.used), step)) + a for a in cuts]
        expired = np.concatenate([np.empty(0, np.int64), *gone])
        self._held -= self._by_slot(expired)
        seen[expired] = GONE
        return expired

    def _is_over(self, start: int, stop: int, step: int) -> Array:
        seen, expire = self._store.data["seen"][start:stop], self._retention.expire
        over: Array = seen != GONE
        if isinstance(expire, Age):
            over &= seen <= step - expire.steps
        elif isinstance(expire, Score) and self._powers is not None:
            over &= self._store.data["score"][start:stop] * self._powers.of(step - seen) < np.float32(expire.limit)
        return over

    def _by_slot(self, positions: Ids) -> Ids:
        return np.bincount(slots_of(self._store.ids.take(positions), self._rows), minlength=SLOTS)


class DecayPowers:
    """`decay ** n` in float32 by multiplication only: unlike with `pow`, the bits are the same on every CPU."""

    def __init__(self, decay: float) -> None:
        self._low = np.cumprod(np.r_[1.0, np.full(_POWERS - 1, decay)])
        self._high = np.cumprod(np.r_[1.0, np.full(_POWERS - 1, self._low[-1] * decay)])

    def of(self, exponents: Ids) -> Array:
        """Return the powers of int64 exponents, which are clipped to 0 .. 16 million."""
        exponents = exponents.clip(0, _POWERS * _POWERS - 1)
        return (self._low.take(exponents % _POWERS) * self._high.take(exponents // _POWERS)).astype(np.float32)


class Candidates:
    """The number of pushes of ids that have no row yet."""

    def __init__(self) -> None:
        self._store = RowStore([Column("count", "I64")], HashIndex())

    def __len__(self) -> int:
        return len(self._store)

    @property
    def bytes(self) -> int:
        return self._store.bytes

    def seen(self, ids: Ids, sightings: Ids, enough: int) -> Array:
        """Count sightings of distinct ids. Return those that had `enough`, bool, which stop being candidates."""
        positions = self._store.find(ids)
        known = np.flatnonzero(positions >= 0)
        counts = sightings.copy()
        counts[known] += self._store.data["count"].take(positions[known])
        admitted: Array = counts >= enough
        fresh = np.flatnonzero((positions < 0) & ~admitted)
        positions[fresh] = self._store.make(ids[fresh])
        self._store.data["count"][positions[~admitted]] = counts[~admitted]
        self._store.remove(positions[admitted & (positions >= 0)])
        return admitted

    def trim(self, rows: int | None) -> None:
        """Bound the candidates of each slot, see CANDIDATES_PER_SLOT."""
        if len(self) <= CANDIDATES_PER_SLOT:
            return
        live = self._store.live()
        slots = slots_of(self._store.ids.take(live), rows)
        full = np.bincount(slots, minlength=SLOTS) > CANDIDATES_PER_SLOT
        crowded = live[full.take(slots)]
        counts = self._store.data["count"].take(crowded) // 2
        self._store.data["count"][crowded] = counts
        self._store.remove(crowded[counts == 0])

    @property
    def rows(self) -> Rows:
        """The candidates as rows; see `counts_of`."""
        return self._store

    def restore(self, ids: Ids, counts: Ids) -> None:
        """Set the counts of distinct ids."""
        positions = self._store.find(ids)
        absent = np.flatnonzero(positions < 0)
        positions[absent] = self._store.make(ids[absent])
        self._store.data["count"][positions] = counts


def counts_of(candidates: Rows) -> tuple[Ids, Ids]:
    """Return the ids of candidates, ascending, and their counts."""
    live = candidates.live()
    ids = candidates.ids.take(live)
    order = np.argsort(ids)
    return ids.take(order), candidates.data["count"].take(live.take(order))
