"""Async mode: pushes apply on arrival, their staleness is counted, training converges, and no trainer waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, load_model
from clusterctl.runtime.trainer.session import Session
from tests.runtime.cluster import DEADLINE_S, thread_cluster

TRUTH = np.arange(1, 9, dtype=np.float32)


def regression(ps: Session) -> float:
    """Linear regression with an extra embedding per parity; return the error of the weights at the end."""

    def reader(pass_: int, rng: np.random.Generator) -> Any:
        for _ in range(60):
            yield rng.normal(size=(32, 8)).astype(np.float32)

    w = ps.dense("w", 8, Adagrad(0.5))
    bias = ps.embedding("bias", 1, SGD(0.05), rows=2)
    for x in ps.steps(reader, passes=3):
        ids = (x[:, 0] > 0).astype(np.int64)
        error = x @ w.value + bias.pull(ids)[:, 0] - (x @ TRUTH + ids)
        ps.push({w: x.T @ error / 32, bias: (ids, error[:, None] / 32)}, samples=32, loss=float((error**2).mean()))
    w.pull()
    return float(np.abs(w.value - TRUTH).max())


def test_async_converges_and_counts_the_staleness_of_every_push(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 3, mode="async") as cluster:
        errors = cluster.train(regression)
        for core in cluster.cores:
            assert core.step == 540
            assert sum(core.policy.staleness.values()) == 540
            assert max(core.policy.staleness) >= 1
        assert {r["tag"] for r in cluster.receipts} == {"pass-00000", "pass-00001", "pass-00002"}
    assert min(errors) < 0.05
    model: Any = load_model(tmp_path / "output" / "pass-00002")
    assert np.abs(model["w"] - TRUTH).max() < 0.05


@pytest.mark.parametrize("mode", ["async", "half-async"])
def test_a_slow_trainer_does_not_delay_the_others(tmp_path: Path, mode: str) -> None:
    begun, others_done = threading.Event(), threading.Semaphore(0)

    def program(ps: Session) -> int:
        w = ps.dense("w", 1, SGD(1.0))
        for _ in ps.steps(lambda pass_, rng: range(20), passes=2):
            if ps.rank:
                assert begun.wait(DEADLINE_S)
            elif ps.step == 1:
                begun.set()
                assert others_done.acquire(timeout=DEADLINE_S)
                assert others_done.acquire(timeout=DEADLINE_S)
            ps.push({w: -np.ones(1)}, samples=5)
            if ps.rank and ps.step == 40:
                others_done.release()
        return ps.step

    with thread_cluster(tmp_path, 2, 3, mode=mode) as cluster:
        assert cluster.train(program) == [40, 40, 40]
        assert cluster.cores[0].step == 120
        assert max(cluster.cores[0].policy.staleness) >= 70


def test_one_async_trainer_gives_the_same_bits_as_plain_sgd(tmp_path: Path) -> None:
    def program(ps: Session) -> Any:
        w = ps.dense("w", 1000, SGD(0.1))
        expected = np.zeros(1000, np.float32)
        for batch in ps.steps(lambda pass_, rng: (rng.normal(size=1000) for _ in range(9)), passes=1):
            gradient, samples = batch.astype(np.float32), 0 if ps.step == 4 else 7
            expected -= np.float32(0.1) * gradient if samples else np.float32(0)
            ps.push({w: gradient}, samples=samples)
        return w.value.copy(), expected

    with thread_cluster(tmp_path, 3, 1, mode="async") as cluster:
        [(value, expected)] = cluster.train(program)
    np.testing.assert_array_equal(value, expected)
