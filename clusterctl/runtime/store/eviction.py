"""Carries out a `Retention` on the rows of one lane: who is admitted, and who goes after a step.

Every decision is made for an id or a slot by itself, so that it is the same however slots are spread over lanes.
"""

from __future__ import annotations

import numpy as np

from clusterctl.runtime.arrays import Array, Bits, Ids
from clusterctl.runtime.store.index import HashIndex
from clusterctl.runtime.store.lru import GONE, UNKNOWN, LruQueue
from clusterctl.runtime.store.rows import Column, RowStore
from clusterctl.runtime.table.retention import Age, Fraction, Retention, Score, Sightings
from clusterctl.runtime.table.sharding import SLOTS, mix64, slots_of

#: Above this many ids of one slot that wait for admission, a sweep halves their counts and forgets those at zero.
CANDIDATES_PER_SLOT = 4_096
_CHUNK = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POWERS = 4_096


def columns_of(retention: Retention | None) -> list[Column]:
    """What rows carry for their retention: `seen`, the step of the last push, and `score` as of then."""
    if retention is None or (retention.expire is None and retention.max_rows is None):
        return []
    seen = Column("seen", "I64")
    return [seen, Column("score", "F32")] if isinstance(retention.expire, Score) else [seen]


class RetentionEnforcer:
    """The retention of one lane's rows in `store`, whose table is bounded by `rows` or not. Not thread-safe."""

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
        """Which of these ids, distinct and without a row, get one in this step: bool of (len(ids),)."""
        admit = self._retention.admit
        if isinstance(admit, Sightings):
            return self.candidates.seen(ids, sightings, admit.count)
        if isinstance(admit, Fraction):
            hashed: Bits = mix64(ids.view(np.uint64) + _GOLDEN) >> np.uint64(11)
            chosen: Array = hashed.astype(np.float64) * 2.0**-53 < admit.share
            return chosen
        return np.ones(len(ids), bool)

    def made(self, positions: Ids) -> None:
        """Rows were made, as if pushed once by an unknown step."""
        self._held += self._by_slot(positions)
        data = self._store.data
        if "seen" in data:
            data["seen"][positions] = UNKNOWN
        if "score" in data:
            data["score"][positions] = 1

    def restored(self) -> None:
        """Columns of rows that were made already may have other contents now."""
        self._is_restored = True
        if self._lru is not None:
            self._lru.forget()

    def begin(self, step: int) -> None:
        """Rows of which no push is known, since they were loaded, count as pushed just before `step`."""
        if self._is_restored and "seen" in self._store.data:
            seen = self._store.data["seen"][: self._store.used]
            seen[seen == UNKNOWN] = step - 1
        self._is_restored = False

    def pushed(self, positions: Ids, sightings: Ids, fresh: Ids, step: int) -> None:
        """Rows at `positions` were named by so many pushes of `step`; those at `fresh` have just been made."""
        data = self._store.data
        if self._powers is not None:
            data["score"][fresh] = 0
            worth = self._powers.of(step - data["seen"].take(positions))
            data["score"][positions] = data["score"].take(positions) * worth + sightings.astype(np.float32)
        if "seen" in data:
            data["seen"][positions] = step

    def leaving(self, step: int) -> Ids:
        """The positions of the rows that go after `step`; the caller must remove them."""
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
    """`decay ** n` in float32 from products alone, whose bits are the same on every CPU; `pow` has none to promise."""

    def __init__(self, decay: float) -> None:
        self._low = np.cumprod(np.r_[1.0, np.full(_POWERS - 1, decay)])
        self._high = np.cumprod(np.r_[1.0, np.full(_POWERS - 1, self._low[-1] * decay)])

    def of(self, exponents: Ids) -> Array:
        """Of exponents, int64: those below 0 count as 0, those above 16 million as 16 million."""
        exponents = exponents.clip(0, _POWERS * _POWERS - 1)
        return (self._low.take(exponents % _POWERS) * self._high.take(exponents // _POWERS)).astype(np.float32)


class Candidates:
    """How often ids were pushed that have no row yet."""

    def __init__(self) -> None:
        self._store = RowStore([Column("count", "I64")], HashIndex())

    def __len__(self) -> int:
        return len(self._store)

    @property
    def bytes(self) -> int:
        return self._store.bytes

    def seen(self, ids: Ids, sightings: Ids, enough: int) -> Array:
        """Counts sightings of distinct ids; which of them have had enough, bool, are no candidates any more."""
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
        """Bounds the candidates of each slot, see CANDIDATES_PER_SLOT."""
        if len(self) <= CANDIDATES_PER_SLOT:
            return
        live = self._store.live()
        slots = slots_of(self._store.ids.take(live), rows)
        full = np.bincount(slots, minlength=SLOTS) > CANDIDATES_PER_SLOT
        crowded = live[full.take(slots)]
        counts = self._store.data["count"].take(crowded) // 2
        self._store.data["count"][crowded] = counts
        self._store.remove(crowded[counts == 0])

    def to_arrays(self) -> tuple[Ids, Ids]:
        """Their ids, ascending, and counts."""
        live = self._store.live()
        ids = self._store.ids.take(live)
        order = np.argsort(ids)
        return ids.take(order), self._store.data["count"].take(live.take(order))

    def restore(self, ids: Ids, counts: Ids) -> None:
        """Sets the counts of distinct ids."""
        positions = self._store.find(ids)
        absent = np.flatnonzero(positions < 0)
        positions[absent] = self._store.make(ids[absent])
        self._store.data["count"][positions] = counts
