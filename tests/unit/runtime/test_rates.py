"""Learning rates that come with a push: in all modes, by table, also for gradients that are sent in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, AdamW, Momentum, connect, constant
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import thread_cluster
from unit.runtime.small import cut_small
from unit.runtime.test_exactly_once import SPEC, made_core, push, replies, value

CASES: list[tuple[str, int, dict[str, int]]] = [
    ("sync", 2, {"ports_num": 2, "ports_num_for_sparse": 2}),
    ("async", 1, {}),
    ("half-async", 2, {"ports_num": 1, "ports_num_for_sparse": 1}),
]
SHAPES: dict[str, tuple[int, ...]] = {"small": (7,), "large": (50, 90), "rows": (6, 3)}
#: By step, the rate of each table; a table without one uses that of its rule.
RATES: list[dict[str, float]] = [
    {"small": 0.5, "large": 0.25, "rows": 1.0},
    {},
    {"large": 0.0, "rows": 0.125},
    {"small": 2.0},
]


def rules() -> dict[str, Rule]:
    return {"small": Momentum(0.1), "large": AdamW(0.1), "rows": Adagrad(0.1, start=0.5)}


def gradient(name: str, step: int) -> Any:
    return np.random.default_rng([step, len(name)]).normal(size=SHAPES[name]).astype(np.float32)


def train(ps: Session, rates: list[dict[str, float]] = RATES, **options: Any) -> dict[str, Any]:
    own = rules()
    tables: dict[str, Any] = {name: ps.dense(name, SHAPES[name], own[name], constant(1)) for name in ("small", "large")}
    tables["rows"] = ps.embedding("rows", 3, own["rows"], constant(1))
    for step in ps.steps(lambda pass_, rng: range(len(rates)), passes=1, **options):
        gradients: dict[Any, Any] = {table: gradient(name, step) for name, table in tables.items()}
        gradients[tables["rows"]] = (np.arange(6), gradients[tables["rows"]])
        ps.push(gradients, samples=1, rates={tables[name]: rate for name, rate in rates[step].items()})
    for name in ("small", "large"):
        tables[name].pull()
    return {"small": tables["small"].value, "large": tables["large"].value, "rows": tables["rows"].pull(np.arange(6))}


def expected(rates: list[dict[str, float]] = RATES) -> dict[str, Any]:
    """The same with bare rules."""
    values = {}
    for name, rule in rules().items():
        values[name] = np.ones(SHAPES[name], np.float32)
        state = [np.full(SHAPES[name], start, np.float32) for start in rule.starts]
        for step, own in enumerate(rates):
            rule.update(values[name], state, gradient(name, step), values[name], step + 1, own.get(name))
    return values


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name in SHAPES:
        np.testing.assert_array_equal(one[name], other[name], name)


@pytest.mark.parametrize(("mode", "pservers", "lanes"), CASES)
def test_a_push_is_applied_with_its_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, pservers: int, lanes: dict[str, int]
) -> None:
    cut_small(monkeypatch)
    with thread_cluster(tmp_path, pservers, 1, mode=mode, **lanes) as cluster:
        assert_same(cluster.train(train)[0], expected())


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    with connect() as session:
        yield session


def test_rates_work_in_local_mode(alone: Session) -> None:
    assert_same(train(alone), expected())


def test_in_sync_mode_the_rates_of_the_lowest_rank_with_samples_count(tmp_path: Path) -> None:
    """A table without a rate there uses that of its rule, even if others have one for it."""

    def program(ps: Session) -> tuple[float, float, float]:
        w, v = ps.dense("w", 1, SGD(0.5)), ps.dense("v", 1, SGD(0.5))
        e = ps.embedding("e", 1, SGD(0.5), constant(0))
        rates: Any = [{w: 64.0, v: 64.0, e: 64.0}, {w: 2.0, e: 4.0}, {w: 8.0, v: 8.0}][ps.rank]
        for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
            only_last = {e: ([3], -np.ones((1, 1)))} if ps.rank == 2 else {}
            ps.push({w: -np.ones(1), v: -np.ones(1), **only_last}, samples=ps.rank, rates=rates)
        return float(w.value[0]), float(v.value[0]), float(e.pull([3])[0, 0])

    with thread_cluster(tmp_path, 2, 3, ports_num_for_sparse=1) as cluster:
        for w, v, e in cluster.train(program):
            assert (w, v) == (2.0, 0.5)
            assert e == pytest.approx(4.0 * 2 / 3), "rank 1 has the rate, rank 2 the gradient"


@pytest.mark.parametrize("pushed", [4, 3], ids=["whole", "the last batch is not pushed"])
def test_with_accumulation_the_rates_of_the_last_batch_count(tmp_path: Path, pushed: int) -> None:
    def program(ps: Session) -> float:
        w = ps.dense("w", 1, SGD(0.5))
        for batch in ps.steps(lambda pass_, rng: range(4), passes=1, accumulate=2):
            if batch < pushed:
                ps.push({w: -np.ones(1)}, samples=1, rates={w: 10.0**batch})
        return float(w.value[0])

    with thread_cluster(tmp_path, 1, 1) as cluster:
        assert cluster.train(program) == [1010.0 if pushed == 4 else 110.0]


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (lambda w: {w: float("nan")}, "the rate of table 'w' is nan; pass a finite number >= 0"),
        (lambda w: {w: 1e39}, "is 1e\\+39"),
        (lambda w: {w: -0.1}, "is -0.1"),
        (lambda w: {w: True}, "is True"),
        (lambda w: {w: "0.1"}, "is '0.1'"),
        (lambda w: {"w": 0.1}, "a rate of 'w', which is not a table of this session"),
    ],
)
def test_a_rate_that_cannot_work_is_an_error(alone: Session, rates: Any, message: str) -> None:
    w = alone.dense("w", 1, SGD(0.5))
    for _ in alone.steps(lambda pass_, rng: range(1), passes=1):
        with pytest.raises(UseError, match=message):
            alone.push({w: np.ones(1)}, 1, rates=rates(w))
        alone.push({w: np.ones(1)}, 1)
    assert w.value[0] == -0.5


def test_geo_mode_has_no_rates(tmp_path: Path) -> None:
    def program(ps: Session) -> None:
        w = ps.dense("w", 1, SGD(0.5))
        for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
            ps.push({w: np.ones(1)}, 1, rates={w: 0.1})

    with thread_cluster(tmp_path, 1, 1, mode="geo(2)") as cluster, pytest.raises(UseError, match="in geo mode"):
        cluster.train(program)


def with_facts(facts: Any) -> wire.Message:
    message = push(0, 0)
    message.parts.append(wire.json_part(facts))
    return message


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "facts",
    [
        {"rates": {"17": 0.1}},
        {"rates": {str(2**64 + SPEC.key): 0.1}},
        {"rates": {"w": 0.1}},
        {"rates": {"9" * 5_000: 0.1}},
        {"rates": {str(SPEC.key): -1}},
        {"rates": {str(SPEC.key): float("inf")}},
        {"rates": {str(SPEC.key): float("nan")}},
        {"rates": {str(SPEC.key): 10**400}},
        {"rates": {str(SPEC.key): None}},
        {"rates": {str(SPEC.key): True}},
        {"rates": [1]},
        {"rates": 0},
        *({"assigned": given} for given in (0, [1], {"w": []}, {"9" * 5_000: []}, {"17": 0.1}, {"17": [1.0]})),
        *({"assigned": {"17": [1.0, bad]}} for bad in (None, True, float("nan"), 10**400, "1", [])),
        {"cursor": "x" * 4_096},
        {"cursor": "x" * 4_096, "rates": {str(SPEC.key): 0.1}},
    ],
    ids=lambda facts: json.dumps(facts)[:40],
)
def test_a_lane_refuses_facts_that_it_cannot_use(facts: Any, mode: str) -> None:
    core = made_core(1, mode)
    [refused] = replies(core.handle(0, with_facts(facts)))
    assert refused.kind == wire.ERROR
    assert refused.json()["error"] == "WireError"
    assert (core.step, value(core)) == (0, 0.0)
    [taken] = replies(core.handle(0, with_facts({"rates": {str(SPEC.key): 3}})))
    assert (taken.kind, value(core)) == (wire.OK, 3.0)


def test_rates_of_many_tables_fit_beside_the_longest_cursor() -> None:
    core = made_core(1)
    long = {"cursor": "x" * 4_094, "rates": {str(SPEC.key): 0.5}, "more": "x" * 500_000}
    [taken] = replies(core.handle(0, with_facts(long)))
    assert (taken.kind, value(core)) == (wire.OK, 0.5)
    assert core.trainers[0].position == "x" * 4_094


def test_a_repeated_push_is_not_applied_again_with_another_rate() -> None:
    for mode in ("sync", "async"):
        core = made_core(1, mode)
        core.handle(0, with_facts({"rates": {str(SPEC.key): 3}}))
        [again] = replies(core.handle(0, with_facts({"rates": {str(SPEC.key): 9}})))
        assert (again.flags, value(core)) == (wire.REPEATED, 3.0)
