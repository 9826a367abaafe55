"""Sync mode over real sockets, compared with an oracle that shares no code with it, within 1e-6 absolute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adam, Momentum, constant, uniform
from clusterctl.runtime.store.sparse import SparseTable
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster
from unit.runtime.oracle import Oracle

SHAPE = (130, 7)
DIM = 3
ALL_IDS = np.array([-(2**63), -7, -1, 0, 1, 2, 3, 5, 8, 2**40, 2**63 - 1])

RULES = [Momentum(0.05, momentum=0.5, l2=0.01), Adam(0.01)]


def fixed_pushes(steps: int, trainers: int) -> list[list[dict[str, Any]]]:
    """Return gradients that do not depend on values: duplicates, negative ids, zero samples, absent tables and rows."""
    rng = np.random.default_rng(11)
    out = []
    for step in range(steps):
        row = []
        for rank in range(trainers):
            push: dict[str, Any] = {"samples": int(rng.integers(1, 600))}
            if step == 3 or (step == 5 and rank == 0):
                push["samples"] = 0
            if (step + rank) % 4 != 1:
                push["dense"] = rng.normal(size=SHAPE).astype(np.float32)
            if step != 4:
                push["ids"] = rng.choice(ALL_IDS[:-1], size=int(rng.integers(0, 9)))
                push["rows"] = rng.normal(size=(len(push["ids"]), DIM)).astype(np.float32)
            row.append(push)
        out.append(row)
    return out


def replay(ps: Session, pushes: list[list[dict[str, Any]]], rule: Rule) -> tuple[Any, Any]:
    w = ps.dense("w", SHAPE, rule, uniform(0.5))
    e = ps.embedding("e", DIM, rule, init=uniform(-0.2, 0.4))
    for step in ps.steps(lambda pass_, rng: range(len(pushes)), passes=1):
        mine = pushes[step][ps.rank]
        gradients: dict[Any, Any] = {}
        if "dense" in mine:
            gradients[w] = mine["dense"]
        if "ids" in mine:
            gradients[e] = (mine["ids"], mine["rows"])
        ps.push(gradients, samples=mine["samples"])
    return w.value.copy(), e.pull(ALL_IDS)


def initial_values(tmp: Path, rule: Rule) -> tuple[Any, Any]:
    with thread_cluster(tmp, 1, 1) as cluster:
        [(dense, rows)] = cluster.train(lambda ps: replay(ps, [], rule))
    return dense, dict(zip(ALL_IDS.tolist(), rows, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_merged_pushes_and_their_updates_follow_the_oracle(tmp_path: Path, rule: Rule) -> None:
    pushes = fixed_pushes(8, 3)
    dense, rows = initial_values(tmp_path / "initial", rule)
    numbers = {key: value for key, value in rule.to_json().items() if key != "rule"}
    oracle = Oracle(dense, lambda key: rows[key], (type(rule).__name__, numbers))
    for step in pushes:
        oracle.step(step)
    with thread_cluster(tmp_path / "job", 2, 3) as cluster:
        results = cluster.train(lambda ps: replay(ps, pushes, rule))
    for value, pulled in results:
        np.testing.assert_allclose(value, oracle.dense.value, rtol=0, atol=1e-6)
        np.testing.assert_allclose(pulled, [oracle.row(key) for key in ALL_IDS.tolist()], rtol=0, atol=1e-6)


def test_a_gradient_without_samples_creates_no_row_and_changes_no_state(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1) as cluster:

        def program(ps: Session) -> tuple[Any, int]:
            w = ps.dense("w", 4, Momentum(1.0), constant(2.0))
            e = ps.embedding("e", DIM, SGD(1.0))
            for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
                ps.push({w: np.ones(4), e: (np.array([1]), np.ones((1, DIM)))}, samples=0)
            return w.value.copy(), ps.step

        [(value, steps)] = cluster.train(program)
        made = [t.ids for core in cluster.cores for t in core.tables.values() if isinstance(t, SparseTable)]
        assert [len(ids) for ids in made] == [0]
    np.testing.assert_array_equal(value, np.full(4, 2.0, np.float32))
    assert steps == 3
