"""Async mode: pushes apply on arrival, and no trainer waits; in half-async, only for the answers to its own push."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from clusterctl.runtime import SGD, zeros
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import DEADLINE_S, thread_cluster


def test_a_slow_trainer_does_not_delay_the_others(tmp_path: Path) -> None:
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

    with thread_cluster(tmp_path, 2, 3, mode="async") as cluster:
        assert cluster.train(program) == [40, 40, 40]
        assert cluster.cores[0].step == 120
        assert max(cluster.cores[0].policy.staleness) >= 70


def test_a_push_waits_for_the_last_answer_of_any_pserver_and_for_no_other_trainer(tmp_path: Path) -> None:
    """One pserver does not answer trainer 0's first push until trainer 1 has made all of its own."""
    others_done = threading.Event()

    def program(ps: Session) -> bool:
        w = ps.dense("w", 300_000, SGD(1.0))
        returned_early = False
        for n in ps.steps(lambda pass_, rng: range(20), passes=2):
            ps.push({w: -np.ones(300_000, np.float32)}, samples=1)
            returned_early |= ps.rank == 0 and not others_done.is_set()
            if ps.rank and ps.step == 40:
                others_done.set()
            assert n < 20
        return returned_early

    with thread_cluster(tmp_path, 3, 2, mode="half-async") as cluster:
        cluster.probe_every_s = 0.05
        core = cluster.cores[-1]
        handle = core.handle

        def lose(rank: int, message: wire.Message) -> Any:
            lost = message.kind == wire.PUSH and rank == 0 and not others_done.is_set()
            return [] if lost else handle(rank, message)

        core.handle = lose  # type: ignore[method-assign]
        assert cluster.train(program) == [False, False]
        assert [core.step for core in cluster.cores] == [80] * len(cluster.cores)


def test_a_trainer_sees_its_own_push_at_once_in_values_and_rows_of_all_pservers(tmp_path: Path) -> None:
    """Each trainer changes its own column and rows, so that the others do not blur what it sees."""
    rows = np.arange(64)

    def program(ps: Session) -> None:
        w = ps.dense("w", (4_000, ps.trainers), SGD(1.0))
        e = ps.embedding("e", ps.trainers, SGD(1.0), init=zeros())
        own = -np.eye(ps.trainers, dtype=np.float32)[ps.rank]
        for n in ps.steps(lambda pass_, rng: range(30), passes=1):
            ps.push({w: np.tile(own, (4_000, 1)), e: (rows, np.tile(own, (64, 1)))}, samples=3)
            assert (w.value[:, ps.rank] == n + 1).all()
            assert (e.pull(rows)[:, ps.rank] == n + 1).all()

    with thread_cluster(tmp_path, 2, 3, mode="half-async", ports_num_for_sparse=2) as cluster:
        cluster.train(program)
