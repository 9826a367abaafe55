"""Copies of tables for saves: made in slices, of one moment, while the lane answers what changes nothing."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from clusterctl.runtime import SGD, Adagrad, load_model
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.pserver.copying import LaneCopies
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import CopiedCut, Output
from clusterctl.runtime.pserver.lanes import Lane
from clusterctl.runtime.store import growable as slices
from clusterctl.runtime.store.dense import DenseTable
from clusterctl.runtime.store.sparse import SparseGrad, SparseTable
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.retention import Retention, Sightings
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until
from unit.runtime.cluster import DEADLINE_S, thread_cluster
from unit.runtime.pserver.test_cuts import SPEC, LaneOfTwo, answered

ONE = np.float32(1)


class SavingLane(LaneOfTwo):
    """A lane that copies in slices."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode, slices=True)

    def save(self, rank: int, tag: str, *, at_pass_end: bool = False) -> list[Output]:
        flags = wire.END_OF_PASS if at_pass_end else 0
        return self._handle(wire.SAVE, rank, 800, flags=flags, parts=[wire.json_part({"tag": tag})])

    def leave(self, rank: int) -> list[Output]:
        return self._handle(wire.BYE, rank, 700)

    def pull_of(self, rank: int) -> list[Output]:
        part = wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)
        return self._handle(wire.PULL, rank, 900 + rank, version=wire.NEWEST, parts=[part])

    def is_saving(self) -> bool:
        [reply] = self._handle(wire.PROBE, 0, 999)
        facts = reply.message.json()  # type: ignore[union-attr]
        assert not (facts.get("saving") and facts["waiting"])  # the pushes of trainers may be among those that wait
        return "saving" in facts

    def finish(self) -> tuple[list[Output], list[Output]]:
        """Copy all; return the saves, and what waited for them."""
        made: list[Output] = []
        while self.core.state.copying.is_under_way:
            made += self.core.copy()
        return made, self.core.go_on()


def value_in(outputs: list[Output]) -> float:
    [save] = [
        one.saves[0] if isinstance(one, CopiedCut) else one for one in outputs if isinstance(one, Save | CopiedCut)
    ]
    return float(save.tables[0].current[0])


@pytest.mark.parametrize("mode", ["sync", "async", "ssp(3)", "geo(2)"])
def test_pulls_are_answered_and_pushes_wait_until_the_tables_are_copied(mode: str) -> None:
    lane = SavingLane(mode)
    assert lane.save(0, "mine") == []
    assert lane.push(0, 0) == lane.push(1, 0) == []
    assert (lane.core.step, lane.held(1)) == (0, [100])
    assert lane.pull_of(1) == [], "it must not overtake the push before it"
    assert lane.held(1) == [100, 901]
    lane.begin(0)  # its push is another's now
    assert answered(lane.pull_of(0)) == [(0, 900)]
    made, then = lane.finish()
    assert value_in(made) == 0.0
    expected = [(1, 901)] if mode == "sync" else [(1, 100), (1, 901)]
    assert (sorted(answered(then)), lane.core.step) == (expected, len(expected) - 1)


def test_messages_beyond_the_bound_are_not_kept_and_not_reported_as_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.runtime.pserver.copying._MOST_KEPT", 1)
    lane = SavingLane("async")
    lane.save(0, "mine")
    assert lane.push(0, 0) == lane.push(1, 0) == []
    assert (lane.held(0), lane.held(1)) == ([100, 800], [])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_no_slice_is_longer_than_the_bound_however_large_a_table_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates for admission are of another store, whose order is not needed before the file is written."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 4_000)
    shape = (20_000,) if kind == "dense" else (10,)
    retention = None if kind == "dense" else Retention(admit=Sightings(2))
    spec = TableSpec("t", kind, shape, Adagrad(0.1), zeros(), retention=retention)
    table: Any = DenseTable(spec, 0, 1, 7) if kind == "dense" else SparseTable(spec, 7)
    if kind == "sparse":
        ids, grads = np.arange(4_000), np.ones((4_000, 10), np.float32)
        for some in (ids[:2_000], ids[:2_000], ids[2_000:]):
            table.apply([SparseGrad(ONE, some, grads[: len(some)])], ONE, 0)
    _, copying = table.freezing()
    steps = sum(1 for _ in copying)
    size = 8 * 20_000 if kind == "dense" else 2_000 * (8 + 8 * 10) + 2_000 * 16
    assert steps >= size / 4_000


@pytest.mark.parametrize(("seconds", "copied"), [(0.0, 1), (0.1, 10), (60.0, 25)])
def test_a_lane_copies_for_as_long_as_it_answered_but_no_longer_than_a_bound(seconds: float, copied: int) -> None:
    """Each slice takes 0.01 s. Pushes wait for the last one, however long the requests between them take."""
    now = itertools.count()
    core = SavingLane("async").core
    slices_left = iter([None] * 100)
    core.state.copying.begin([slices_left])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    lane = Lane(core, router, lambda lane, save: None, lambda lane, cut: None, False, clock=lambda: next(now) / 200)
    lane._copy(seconds)
    assert len(list(slices_left)) == pytest.approx(100 - copied, abs=1 + copied // 5)
    lane.close()
    context.term()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_trainer_learns_that_a_lane_is_saving_however_long_that_takes(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copying of each save goes on only once a trainer has heard of it."""
    told, advance, probe = threading.Event(), LaneCopies.advance, ServerCore._probe

    def advance_late(copying: LaneCopies) -> bool:
        return advance(copying) if told.is_set() or not copying.is_under_way else False

    def note(core: ServerCore, message: wire.Message) -> list[Output]:
        out = probe(core, message)
        if out[0].message.json().get("saving"):  # type: ignore[union-attr]
            told.set()
        return out

    monkeypatch.setattr(LaneCopies, "advance", advance_late)
    monkeypatch.setattr(ServerCore, "_probe", note)

    def program(ps: Session) -> Any:
        w, e = ps.dense("w", 3_000, SGD(1.0)), ps.embedding("e", 2, SGD(1.0))
        for n in ps.steps(lambda pass_, rng: range(3), passes=2):
            ps.push({w: np.cos(w.value + n), e: ([1, 2], e.pull([1, 2]) + n)}, samples=1)
        return w.pull().copy(), e.pull([1, 2])

    with thread_cluster(tmp_path, 1, 1, mode=mode, ports_num=2, ports_num_for_sparse=1) as cluster:
        [(dense, rows)] = cluster.train(program)
    assert told.is_set()
    saved: Any = load_model(tmp_path / "output" / "pass-00001")
    np.testing.assert_array_equal(saved["w"], dense)
    np.testing.assert_array_equal(saved["e"][1], rows)


def stall(server: Any, until: threading.Event) -> None:
    write = server._write

    def write_late(save: Any) -> None:
        assert until.wait(DEADLINE_S)
        write(save)

    server._write = write_late


def test_a_lane_whose_disk_is_behind_answers_and_changes_nothing_until_there_is_room(tmp_path: Path) -> None:
    may_write = threading.Event()

    def program(ps: Session) -> Any:
        w = ps.dense("w", 3_000, SGD(1.0))
        for _ in ps.steps(lambda pass_, rng: range(1), passes=6):
            ps.push({w: np.ones(3_000)}, samples=1)
        return w.pull().copy()

    with thread_cluster(tmp_path, 1, 1, ports_num=1, ports_num_for_sparse=0) as cluster:
        stall(cluster.pservers[0].server, may_write)
        [core] = cluster.cores
        results: list[Any] = []
        trainer = threading.Thread(target=lambda: results.extend(cluster.train(program)))
        trainer.start()
        try:
            assert wait_until(lambda: core.state.copying.is_paused)
            answers: list[int] = []
            cluster.lanes[0].submit(lambda core: answers.append(core.step) or [], at_any_time=True)
            assert wait_until(lambda: bool(answers))
            assert answers[0] < 6
        finally:
            may_write.set()
            trainer.join(DEADLINE_S)
    for pass_ in range(6):
        saved: Any = load_model(tmp_path / "output" / f"pass-{pass_:05d}")
        np.testing.assert_array_equal(saved["w"], np.full(3_000, -1.0 - pass_, np.float32))
    np.testing.assert_array_equal(results[0], saved["w"])


@pytest.mark.parametrize("is_paused", [False, True])
def test_what_the_last_trainer_leaves_is_saved_although_the_lane_is_to_finish(tmp_path: Path, is_paused: bool) -> None:
    with thread_cluster(tmp_path, 1, 1, ports_num=1, ports_num_for_sparse=0) as cluster:
        [lane] = cluster.lanes

        def program(session: Session) -> None:
            w = session.dense("w", 3_000, SGD(1.0))
            for _ in session.steps(lambda pass_, rng: range(2), passes=1):
                session.push({w: np.ones(3_000)}, samples=1)
                raise InterruptedError

        with pytest.raises(InterruptedError):
            cluster.train(program)
        if is_paused:
            lane.submit(lambda core: lane.pause() or [], at_any_time=True)  # type: ignore[func-returns-value]
        cluster.pservers[0].handle_command({"cmd": "left", "ranks": [0]})
        cluster.pservers[0].finish()
    saved: Any = load_model(tmp_path / "output" / "pass-00000")
    np.testing.assert_array_equal(saved["w"], np.full(3_000, -1, np.float32))
