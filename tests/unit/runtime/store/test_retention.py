"""Embeddings with retention, compared with an oracle of dictionaries, on 1, 2 and 3 lanes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.errors import TableError, UseError
from clusterctl.runtime.store import eviction
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.initializers import constant, uniform
from clusterctl.runtime.table.retention import (
    Retention,
    after_sightings,
    fraction,
    older_than,
    retention_from_json,
    score_below,
)
from clusterctl.runtime.table.rules import SGD, Adagrad
from clusterctl.runtime.table.sharding import SLOTS, owners_of, slots_of
from clusterctl.runtime.table.spec import TableSpec, spec_from_json

DIM = 3
LR, EPS = np.float32(0.5), np.float32(1e-10)


def spec_of(retention: Retention | None, rows: int | None = None) -> TableSpec:
    return TableSpec("e", "sparse", (DIM,), Adagrad(0.5), uniform(0.1), rows=rows, retention=retention)


def crowded(rows: int | None) -> list[int]:
    """Return twenty ids, many of which share a slot, including negative ones if they are allowed."""
    if rows is not None:
        return [slot + SLOTS * k for slot in (0, 1, 5, 1023) for k in range(5)]
    pool = np.arange(-20_000, 20_000)
    slots = slots_of(pool, None)
    return [int(i) for slot in (0, 1, 5, 1023) for i in pool[slots == slot][:5]]


class Oracle:
    """The whole table as dictionaries (rows, state, last push, score), processed one id at a time."""

    def __init__(self, spec: TableSpec, initial: dict[int, Any]) -> None:
        self.spec, self.initial = spec, initial
        self.slots = dict(zip(initial, slots_of(np.array(list(initial)), spec.rows).tolist(), strict=True))
        self.value: dict[int, Any] = {}
        self.state: dict[int, Any] = {}
        self.seen: dict[int, int] = {}
        self.score: dict[int, float] = {}
        self.count: dict[int, int] = {}
        self.gone: dict[str, int] = {"expired": 0, "evicted": 0}

    def row(self, key: int) -> Any:
        return self.value.get(key, self.initial[key])

    def step(self, pushes: list[tuple[int, dict[int, Any]]], step: int) -> None:
        total = np.float32(sum(samples for samples, _ in pushes))
        for key in sorted({key for _, rows in pushes for key in rows}):
            named = [(np.float32(n), rows[key]) for n, rows in pushes if key in rows]
            if self.admits(key, len(named)):
                self.update(key, named, total, step)
        if self.spec.retention is not None:
            self.forget(self.spec.retention, step)

    def admits(self, key: int, sightings: int) -> bool:
        admit = self.spec.retention.admit if self.spec.retention else None
        if admit is None or key in self.value:
            return True
        self.count[key] = self.count.get(key, 0) + sightings
        if self.count[key] < admit.count:  # type: ignore[union-attr]
            return False
        del self.count[key]
        return True

    def update(self, key: int, named: list[tuple[Any, Any]], total: Any, step: int) -> None:
        value, state = self.row(key), self.state.get(key, np.zeros(DIM, np.float32))
        grad = np.zeros(DIM, np.float32)
        for weight, row in named:
            grad = grad + weight * row
        grad = grad / total
        state = state + grad * grad
        self.state[key], self.value[key] = state, value - LR * grad / (np.sqrt(state) + EPS)
        self.score[key] = self.score.get(key, 0.0) * self.decay() ** (step - self.seen.get(key, 0)) + len(named)
        self.seen[key] = step

    def decay(self) -> float:
        expire = self.spec.retention.expire if self.spec.retention else None
        return getattr(expire, "decay", 1.0)

    def forget(self, retention: Retention, step: int) -> None:
        if retention.expire is not None and (step + 1) % retention.sweep_every == 0:
            self.drop([key for key in self.value if self.is_over(key, retention, step)], "expired")
        if retention.max_rows is not None:
            for slot in {self.slots[key] for key in self.value}:
                share = (slot + 1) * retention.max_rows // SLOTS - slot * retention.max_rows // SLOTS
                mine = sorted((self.seen[k], k) for k in self.value if self.slots[k] == slot)
                self.drop([key for _, key in mine[: max(0, len(mine) - share)]], "evicted")

    def is_over(self, key: int, retention: Retention, step: int) -> bool:
        age = step - self.seen[key]
        if hasattr(retention.expire, "steps"):
            return bool(age >= retention.expire.steps)
        return bool(self.score[key] * self.decay() ** age < retention.expire.limit)  # type: ignore[union-attr]

    def drop(self, keys: Iterable[int], why: str) -> None:
        for key in keys:
            for part in (self.value, self.state, self.seen, self.score):
                part.pop(key)  # type: ignore[attr-defined]
            self.gone[why] += 1


class Lanes:
    """The real table, split into lanes."""

    def __init__(self, spec: TableSpec, lanes: int) -> None:
        self.spec, self.lanes = spec, lanes
        self.tables = [SparseTable(spec, 7, lane, lanes) for lane in range(lanes)]

    def step(self, pushes: list[tuple[int, dict[int, Any]]], step: int) -> None:
        total = np.float32(sum(samples for samples, _ in pushes))
        for lane, table in enumerate(self.tables):
            table.apply([self.grad(n, rows, lane) for n, rows in pushes], total, step)

    def grad(self, samples: int, rows: dict[int, Any], lane: int) -> SparseGrad:
        ids = self.of(np.array(sorted(rows), np.int64), lane)
        return SparseGrad(
            np.float32(samples), ids, np.array([rows[i] for i in ids.tolist()], np.float32).reshape(-1, DIM)
        )

    def of(self, ids: Any, lane: int) -> Any:
        return ids[owners_of(ids, self.spec.rows, self.lanes) == lane]

    def pull(self, ids: list[int], version: int | None) -> dict[int, list[float]]:
        out = {}
        for lane, table in enumerate(self.tables):
            own = self.of(np.array(sorted(ids), np.int64), lane)
            out.update(zip(own.tolist(), table.pull(own, version).tolist(), strict=True))
        return out

    def ids(self) -> list[int]:
        return sorted(i for table in self.tables for i in table.ids.tolist())

    def candidates(self) -> dict[int, int]:
        return {i: n for t in self.tables for i, n in zip(*(a.tolist() for a in t.candidates()), strict=True)}

    def counter(self, name: str) -> int:
        return sum(table.counters()[name] for table in self.tables)

    def moved(self, lanes: int) -> Lanes:
        """Return the same table on another number of lanes, moved through the contents of a checkpoint."""
        other = Lanes(self.spec, lanes)
        for source in [table.frozen() for table in self.tables]:
            at = source.live()
            ids, (waiting, counts) = source.ids_at(at), source.candidates()
            for lane, table in enumerate(other.tables):
                own = owners_of(ids, self.spec.rows, lanes) == lane
                table.restore(ids[own], {c.name: source.read(c.name, at[own]) for c in source.columns()})
                mine = owners_of(waiting, self.spec.rows, lanes) == lane
                table.restore_candidates(waiting[mine], counts[mine])
        return other


EXPIRES = [None, older_than(1), older_than(3), score_below(0.3, 0.5), score_below(2.0, 0.5)]
RETENTIONS = st.builds(
    Retention,
    admit=st.sampled_from([None, after_sightings(1), after_sightings(3)]),
    expire=st.sampled_from(EXPIRES),
    max_rows=st.sampled_from([None, SLOTS, 2 * SLOTS + 512]),
    sweep_every=st.sampled_from([1, 3]),
)
PUSHES = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 19), max_size=12)), max_size=3),
    min_size=1,
    max_size=12,
)


def with_rows(history: Any, pool: list[int]) -> list[list[tuple[int, dict[int, Any]]]]:
    rng = np.random.default_rng(5)
    return [
        [(n, {pool[p]: rng.normal(size=DIM).astype(np.float32) for p in named}) for n, named in pushes]
        for pushes in history
    ]


@settings(max_examples=40)
@given(retention=RETENTIONS, history=PUSHES, lanes=st.integers(1, 3), after=st.integers(1, 3), bounded=st.booleans())
def test_any_history_on_any_lanes_matches_the_oracle(
    retention: Retention, history: Any, lanes: int, after: int, bounded: bool
) -> None:
    rows = 5 * SLOTS if bounded else None
    pool, spec = crowded(rows), spec_of(retention, rows)
    table = Lanes(spec, lanes)
    oracle = Oracle(spec, {key: np.array(row, np.float32) for key, row in table.pull(pool, None).items()})
    gone = {"expired": 0, "evicted": 0}
    for step, pushes in enumerate(with_rows(history, pool)):
        if step == len(history) // 2:
            gone = {name: table.counter(name) for name in gone}
            table = table.moved(after)
        before = table.pull(pool, None)
        table.step(pushes, step)
        oracle.step(pushes, step)
        assert table.ids() == sorted(oracle.value)
        assert table.candidates() == oracle.count
        assert table.pull(pool, step) == before
        pulled = table.pull(pool, step + 1)
        np.testing.assert_allclose([pulled[key] for key in pool], [oracle.row(key) for key in pool], rtol=0, atol=1e-6)
    assert {name: gone[name] + table.counter(name) for name in gone} == oracle.gone


@pytest.mark.parametrize("first", [0, 5_000])
def test_a_loaded_row_counts_as_pushed_once_before_the_next_step(first: int) -> None:
    rows, one = 9 * SLOTS, np.float32(1)
    table = SparseTable(spec_of(Retention(expire=score_below(0.2, 0.5), sweep_every=1), rows), 0)
    table.restore(np.array([5]), {"rows": np.ones((1, DIM), np.float32)})
    left = []
    for step in range(first, first + 4):
        table.apply([], one, step)
        left.append(len(table))
    assert left == [1, 1, 0, 0]  # scores 1/2, 1/4, 1/8


def test_a_checkpoint_can_be_read_by_a_table_with_another_retention() -> None:
    one, ids = np.float32(1), np.arange(8)
    tables = [SparseTable(spec_of(r), 0) for r in (None, Retention(expire=older_than(5)), Retention(max_rows=SLOTS))]
    tables[1].apply([SparseGrad(one, ids, np.ones((8, DIM), np.float32))], one, 0)
    for source, target in itertools.permutations(tables, 2):
        at = source.live()
        target.restore(source.ids_at(at), {c.name: source.read(c.name, at) for c in source.columns()})
    for table in tables:
        assert table.ids.tolist() == ids.tolist()
        np.testing.assert_array_equal(table.pull(ids, None), tables[1].pull(ids, None))


def test_a_fraction_of_ids_is_admitted_and_always_the_same() -> None:
    ids = np.arange(20_000)
    grad = [SparseGrad(np.float32(1), ids, np.ones((len(ids), DIM), np.float32))]
    tables = [SparseTable(spec_of(Retention(fraction(share))), seed) for share, seed in ((0.3, 1), (0.3, 2), (0.6, 3))]
    for step in range(2):
        for table in tables:
            table.apply(grad, np.float32(1), step)
    some, repeated, more = (set(table.ids.tolist()) for table in tables)
    assert 0.28 < len(some) / len(ids) < 0.32
    assert some == repeated
    assert some < more
    counters = tables[0].counters()
    assert (counters["admitted"], counters["refused"]) == (len(some), 2 * (len(ids) - len(some)))


def test_when_candidates_crowd_a_slot_half_of_them_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "CANDIDATES_PER_SLOT", 4)
    table = SparseTable(spec_of(Retention(after_sightings(9), sweep_every=2), rows=20 * SLOTS), 0)
    full, quiet = [SLOTS * k for k in range(10)], [1 + SLOTS * k for k in range(4)]
    for step, ids in enumerate([sorted(full + quiet), full[:3]]):
        grad = SparseGrad(np.float32(1), np.array(ids), np.ones((len(ids), DIM), np.float32))
        table.apply([grad], np.float32(1), step)
    ids, counts = table.candidates()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        **dict.fromkeys(full[:3], 1),
        **dict.fromkeys(quiet, 1),
    }


@settings(max_examples=30)
@given(RETENTIONS)
def test_a_retention_survives_json(retention: Retention) -> None:
    assert retention_from_json(json.loads(json.dumps(retention.to_json()))) == retention
    spec = spec_of(retention)
    assert spec_from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_definitions_without_a_retention_are_still_read() -> None:
    data = spec_of(None).to_json()
    del data["retention"]
    assert spec_from_json(data).retention is None


def test_trainers_with_different_retentions_are_refused() -> None:
    with pytest.raises(TableError, match=r"retention: .*max_rows.*2048"):
        spec_of(Retention(max_rows=1024)).require_same(spec_of(Retention(max_rows=2048)), rank=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: after_sightings(0),
        lambda: after_sightings(True),
        lambda: fraction(0.0),
        lambda: fraction(1.5),
        lambda: fraction(float("nan")),
        lambda: older_than(0),
        lambda: older_than(2.5),  # type: ignore[arg-type]
        lambda: score_below(-1, 0.5),
        lambda: score_below(1, 1.0),
        lambda: Retention(max_rows=1023),
        lambda: Retention(sweep_every=0),
        lambda: Retention(admit=older_than(3)),  # type: ignore[arg-type]
        lambda: Retention(expire=after_sightings(3)),  # type: ignore[arg-type]
        lambda: spec_of(older_than(3)),  # type: ignore[arg-type]
        lambda: TableSpec("w", "dense", (2,), SGD(1.0), constant(0), retention=Retention()),
    ],
)
def test_meaningless_values_are_an_error(make: Any) -> None:
    with pytest.raises(UseError):
        make()


GOOD = Retention(after_sightings(2), older_than(5), 2048).to_json()


@pytest.mark.parametrize(
    "data",
    [
        [],
        "x",
        {},
        {**GOOD, "more": 1},
        {**GOOD, "admit": {"kind": "chance", "count": 2}},
        {**GOOD, "admit": {"kind": "after_sightings"}},
        {**GOOD, "admit": {"kind": ["after_sightings"], "count": 2}},
        {**GOOD, "admit": {"kind": "after_sightings", "count": "2"}},
        {**GOOD, "expire": {"kind": "after_sightings", "count": 2}},
        {**GOOD, "max_rows": 2**70},
        {**GOOD, "sweep_every": None},
    ],
)
def test_a_damaged_definition_is_refused(data: Any) -> None:
    with pytest.raises(UseError):
        retention_from_json(data)
