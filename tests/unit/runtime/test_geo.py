"""geo(k) compared with an independent implementation in float64: two trainers, driven in a random order."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import Adagrad, constant
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.sparse import SparseTable
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster
from unit.runtime.oracle import Lazy

RULE = ("Adagrad", {"lr": 0.1})
DENSE = np.full(4, 0.5)
ROW = np.full(2, -0.25)


class Servers:
    def __init__(self) -> None:
        self.dense = DENSE.copy()
        self.rows: dict[int, Any] = {}

    def row(self, key: int) -> Any:
        return self.rows.get(key, ROW)


class Trainer:
    """`s = copy(local); d = (s - base) / c; send d; receive G; local += G - s; base = G`; for rows, c is 1."""

    def __init__(self, servers: Servers, every: int, trainers: int) -> None:
        self.servers, self.every, self.trainers = servers, every, trainers
        self.dense, self.base = Lazy(servers.dense, RULE), servers.dense.copy()
        self.rows: dict[int, Lazy] = {}
        self.row_base: dict[int, Any] = {}
        self.touched: set[int] = set()
        self.since = 0

    def pull(self, key: int) -> Any:
        if key not in self.row_base:
            self.rows.setdefault(key, Lazy(ROW, RULE)).value = self.servers.row(key).copy()
            self.row_base[key] = self.servers.row(key).copy()
        return self.rows[key].value

    def push(self, dense: Any, ids: list[int], rows: Any, samples: int, last: bool) -> None:
        if samples:
            self.dense.apply(dense, 1)
            for key, row in zip(ids, rows, strict=True):
                self.pull(key)
                self.rows[key].apply(row, 1)
                self.touched.add(key)
        self.since += 1
        if self.since == self.every or last:
            self.exchange()

    def exchange(self) -> None:
        servers, self.since = self.servers, 0
        servers.dense = servers.dense + (self.dense.value - self.base) / self.trainers
        self.dense.value, self.base = servers.dense.copy(), servers.dense.copy()
        for key in sorted(self.touched):
            servers.rows[key] = servers.row(key) + self.rows[key].value - self.row_base[key]
        self.row_base, self.touched = {}, set()


def gradients(rank: int, dense: Any, rows: Any) -> tuple[Any, Any]:
    return np.sin(dense * (rank + 2)) + 0.1, np.cos(rows * (rank + 3))


def follow(ps: Session, servers: Servers, every: int, batches: int) -> Iterator[None]:
    """Train a session and its oracle together, one batch at a time; their values are equal after each."""
    chance, oracle = random.Random(ps.rank), Trainer(servers, every, 2)
    w = ps.dense("w", 4, Adagrad(0.1), constant(0.5))
    e = ps.embedding("e", 2, Adagrad(0.1), constant(-0.25))
    for number in ps.steps(lambda pass_, rng: range(batches), passes=1):
        ids = chance.sample(range(-3, 4), 3)
        expected = np.array([oracle.pull(key) for key in [0, 7, *ids]])
        np.testing.assert_allclose(e.pull([0, 7, *ids]), expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(w.value, oracle.dense.value, rtol=0, atol=1e-6)
        dense, rows = gradients(ps.rank, oracle.dense.value, expected[2:])
        samples = 0 if number == 2 else 5
        ps.push({w: dense, e: (ids, rows)}, samples=samples)
        oracle.push(dense, ids, rows, samples, last=number == batches - 1)
        yield


@pytest.mark.parametrize("every", [1, 3, 25])
def test_geo_follows_its_definition(tmp_path: Path, every: int) -> None:
    lengths = [9, 6]
    order = [0] * lengths[0] + [1] * lengths[1]
    random.Random(every).shuffle(order)
    servers = Servers()
    with (
        thread_cluster(tmp_path, 2, 2, mode=f"geo({every})", ports_num_for_sparse=1) as cluster,
        contextlib.ExitStack() as stack,
    ):
        sessions = [stack.enter_context(cluster.session(rank)) for rank in range(2)]
        turns = [follow(ps, servers, every, lengths[ps.rank]) for ps in sessions]
        for rank in order:
            next(turns[rank])
        assert [list(turn) for turn in turns] == [[], []]
        tables = [table for core in cluster.cores for table in core.tables.values()]
        dense = np.concatenate([t.current for t in tables if isinstance(t, DenseTable)])
        held = {int(k): t.pull(np.array([k]), None)[0] for t in tables if isinstance(t, SparseTable) for k in t.ids}
    np.testing.assert_allclose(dense, servers.dense, rtol=0, atol=1e-6)
    assert sorted(held) == sorted(servers.rows)
    for key, row in held.items():
        np.testing.assert_allclose(row, servers.rows[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("mode", "pushes"), [("geo(4)", [0, 0, 0, 1, 1, 2]), ("async", [None] * 6)])
def test_what_a_trainer_logs_has_the_exchanges_that_checkpoints_count(
    tmp_path: Path, mode: str, pushes: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(SupervisorSocket, "send", lambda _, event, **fields: sent.append({"event": event, **fields}))

    def program(ps: Session) -> None:
        w = ps.dense("w", 4, Adagrad(0.1))
        for number in ps.steps(lambda pass_, rng: range(6), passes=1):
            ps.push({w: np.ones(4, np.float32)}, samples=1)
            ps.log(**{f"auc{number}": 0.5})  # a name of its own, so that each is an event

    with thread_cluster(tmp_path, 1, 1, mode=mode) as cluster:
        cluster.train(program)
    logged = [event for event in sent if event["event"] == "log"]
    assert [event["step"] for event in logged] == [1, 2, 3, 4, 5, 6]
    assert [event.get("pushes") for event in logged] == pushes
