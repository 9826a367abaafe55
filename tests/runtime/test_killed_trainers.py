"""Trainers that die between any two messages, over real sockets: a successor continues, and nothing counts twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, uniform, zeros
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from tests.runtime.cluster import DEADLINE_S, ThreadCluster, thread_cluster
from tests.runtime.small import PART, cut_small

LANES = {"ports_num": 2, "ports_num_for_sparse": 1}
ELEMENTS = 6 * PART
IDS = np.array([3, 3, 8, -1])
STEPS = 6


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def value_dependent(ps: Session) -> Any:
    w = ps.dense("w", ELEMENTS, Adagrad(0.1), uniform(0.5))
    e = ps.embedding("e", 3, Adagrad(0.1))
    wanted = {e: lambda ids: ids}
    for ids in ps.steps(lambda pass_, rng: (rng.integers(-9, 9, 8) for _ in range(STEPS)), 1, prefetch=1, ids=wanted):
        rows = e.pull(ids)
        ps.push({w: np.sin(w.value * rows.sum()), e: (ids, rows + w.value[:3])}, samples=1 + ps.rank)
    return w.value.copy(), e.pull(np.arange(-9, 9))


def counted(ps: Session) -> None:
    """Every push adds 1 to each element, and to a row how often it is named."""
    w, e = ps.dense("w", ELEMENTS, SGD(1.0)), ps.embedding("e", 2, SGD(1.0), zeros())
    for _ in ps.steps(lambda pass_, rng: range(STEPS), passes=1):
        e.pull(IDS)
        ps.push({w: -np.ones(ELEMENTS), e: (IDS, -np.ones((4, 2)))}, samples=1)


def die_after(ps: Session, messages: int) -> Session:
    """Let the process exit after this many messages of pushes, all of which have reached their lanes."""
    link: Any = ps._client._link
    post, sent, lanes = link.post, [0], link.layout.lanes

    def post_or_die(lane: int, message: wire.Message, *rest: Any) -> None:
        if message.kind == wire.PUSH and sent[0] == messages:
            received: list[wire.Message] = []
            for each in range(lanes):
                probe = wire.Message(wire.PROBE, message.rank, 2**62 + each, message.epoch, message.attempt)
                post(each, probe, received.append)
            link.wait(lambda: len(received) == lanes)
            raise InterruptedError("killed")
        sent[0] += message.kind == wire.PUSH
        post(lane, message, *rest)

    link.post = post_or_die
    return ps


def train_with_a_death(cluster: ThreadCluster, program: Any, messages: int) -> list[Any]:
    """Trainer 1 dies after this many messages of its pushes, and has a successor."""
    results: list[Any] = [None, None]

    def other() -> None:
        with cluster.session(0) as ps:
            results[0] = program(ps)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    with pytest.raises(InterruptedError), die_after(cluster.session(1), messages) as ps:
        program(ps)
    with cluster.session(1, attempt=2) as ps:
        results[1] = program(ps)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return results


@pytest.mark.parametrize("messages", [1, 8, 20])
def test_in_sync_a_death_does_not_change_the_bits(tmp_path: Path, messages: int) -> None:
    with thread_cluster(tmp_path / "undisturbed", 1, 2) as cluster:
        expected, _ = cluster.train(value_dependent)
    with thread_cluster(tmp_path / "disturbed", 2, 2, **LANES) as cluster:
        results = train_with_a_death(cluster, value_dependent, messages)
    for result in results:
        for actual, reference in zip(result, expected, strict=True):
            np.testing.assert_array_equal(actual, reference)


@pytest.mark.parametrize(("mode", "dense", "messages"), [("async", 2 * STEPS, 5), ("geo(3)", STEPS, 13)])
def test_in_the_other_modes_no_push_is_lost_or_counted_twice(
    tmp_path: Path, mode: str, dense: int, messages: int
) -> None:
    with thread_cluster(tmp_path, 2, 2, mode=mode, **LANES) as cluster:
        train_with_a_death(cluster, counted, messages)
        tables = [t for core in cluster.cores for _, t in sorted(core.tables.items())]
        values = np.concatenate([t.current for t in tables if t.spec.name == "w"])
        rows = {int(i): float(t.pull(np.array([i]), None)[0, 0]) for t in tables if t.spec.name == "e" for i in t.ids}
    np.testing.assert_array_equal(values, np.full(ELEMENTS, dense))
    assert rows == {3: 4 * STEPS, 8: 2 * STEPS, -1: 2 * STEPS}


@pytest.mark.parametrize("step", [5, 6, 9])
def test_a_trainer_that_dies_in_a_second_loop_repeats_no_pass_of_it(tmp_path: Path, step: int) -> None:
    def program(ps: Session, dies_at: int = -1) -> Any:
        w, passes = ps.dense("w", 3, SGD(1.0)), []
        for loop in range(2):
            for pass_ in ps.steps(lambda pass_, rng: [pass_] * 3, passes=2):
                passes.append((loop, pass_))
                ps.push({w: -np.ones(3)}, samples=1)
                if ps.step == dies_at:
                    raise InterruptedError
        return w.value[0], passes

    with thread_cluster(tmp_path, 1, 1) as cluster:
        with pytest.raises(InterruptedError), cluster.session(0) as ps:
            program(ps, step)
        with cluster.session(0, attempt=2) as ps:
            assert program(ps) == (12, [(pass_ // 2, pass_) for pass_ in range(4) for _ in range(3)][step:])
