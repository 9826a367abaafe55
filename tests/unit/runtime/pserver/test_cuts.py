"""Cuts outside sync on one lane, and between the lanes of a run: no trainer is asked, and each push counts once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD
from clusterctl.runtime.modes import CHECKPOINT, MODEL
from clusterctl.runtime.pserver.copying import LaneCopies
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_cut import Moment
from clusterctl.runtime.pserver.lane_state import CopiedCut, DueCut, HeldCut, LaneState, Output, Reply
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until
from unit.runtime.cluster import ThreadCluster, thread_cluster

SPEC = TableSpec("w", "dense", (4,), SGD(1.0), zeros())


class LaneOfTwo:
    """One lane and two trainers, which have made `w` there unless it is new."""

    def __init__(self, mode: str = "async", *, new: bool = False, number: int = 0, slices: bool = False) -> None:
        copying = LaneCopies(in_slices=slices)
        self.core = ServerCore(LaneState(number, Layout(1 + number), 2, mode=Mode.parse(mode), copying=copying))
        self.attempts = [0, 0]
        for rank in range(2):
            self.begin(rank)
            if not new:
                self.create(rank)

    def begin(self, rank: int) -> dict[str, Any]:
        """Start a new attempt of a trainer and return the reply to its hello."""
        self.attempts[rank] += 1
        [reply] = self._handle(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": 2})])
        assert isinstance(reply, Reply)
        return dict(reply.message.json())

    def create(self, rank: int) -> list[Output]:
        return self._handle(wire.CREATE, rank, 2, parts=[wire.json_part(SPEC.to_json())])

    def push(self, rank: int, step: int, *, pieces: int = 1, piece: int = 0) -> list[Output]:
        whole = wire.Part(wire.DENSE, -np.ones(4, np.float32), SPEC.key)
        parts = [wire.later_part(SPEC.key, 1)] if pieces > 1 and piece == 0 else [whole]
        number = 100 + 10 * step + piece
        return self._handle(wire.PUSH, rank, number, step=step, samples=1, parts=parts, piece=piece, pieces=pieces)

    def pull(self) -> float:
        part = wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)
        [reply] = self._handle(wire.PULL, 0, 900, parts=[part])
        assert isinstance(reply, Reply)
        return float(reply.message.parts[0].array[0])

    def held(self, rank: int) -> list[int]:
        """Return the requests of which a probe says that the lane holds them."""
        [reply] = self._handle(wire.PROBE, rank, 999)
        assert isinstance(reply, Reply)
        return list(reply.message.json()["held"])

    def _handle(self, kind: int, rank: int, request: int, **fields: Any) -> list[Output]:
        return self.core.handle(rank, wire.Message(kind, rank, request, attempt=self.attempts[rank], **fields))


def answered(outputs: Sequence[Output]) -> list[tuple[int, int]]:
    """Return (rank, request) of each reply; none of them is an error."""
    replies = [output.message for output in outputs if isinstance(output, Reply)]
    assert all(reply.kind == wire.OK for reply in replies)
    return [(reply.rank, reply.request) for reply in replies]


def copied(outputs: Sequence[Output]) -> tuple[int, list[int], float]:
    """Return the step of the only copy in `outputs`, the pushes of each trainer in it, and a value of `w`."""
    [copy] = [output for output in outputs if isinstance(output, CopiedCut)]
    [save] = copy.saves
    return save.step, [cursor["step"] for cursor in save.cursors], float(save.tables[0].current[0])


def test_the_highest_counts_are_those_of_the_cut() -> None:
    lane = LaneOfTwo()
    assert answered(lane.push(0, 0)) == [(0, 100)]
    assert lane.core.policy.hold_cut(1) == [HeldCut(1, (1, 0), 1, 0)]
    assert lane.push(0, 1) == lane.push(0, 2) == lane.push(1, 0) == []
    before = lane.core.policy.make_cut(1, Moment((2, 1), 3, 0, 1))
    assert answered(before) == [(0, 110), (1, 100), (0, 120)], "it goes on at once, and answers each push"
    assert copied(before) == (3, [2, 1], 3.0)
    assert lane.pull() == 4.0
    assert lane.core.step == 4


def test_replies_announce_a_checkpoint_to_trainers_and_not_a_model() -> None:
    for purpose, announced in ((CHECKPOINT, 1), (MODEL, 0), (CHECKPOINT | MODEL, 1)):
        lane = LaneOfTwo()
        lane.push(0, 0)
        lane.core.policy.hold_cut(1)
        assert any(
            isinstance(output, CopiedCut) for output in lane.core.policy.make_cut(1, Moment((1, 0), 1, 0, purpose))
        )
        [reply] = lane.push(0, 1)
        assert isinstance(reply, Reply)
        assert reply.message.cut == announced


def test_a_push_that_has_begun_is_part_of_the_cut() -> None:
    lane = LaneOfTwo()
    lane.push(0, 0, pieces=2)
    assert lane.core.policy.hold_cut(1) == [HeldCut(1, (1, 0), 1, 0)]
    assert lane.core.policy.make_cut(1, Moment((1, 0), 1, 0, 1)) == []
    assert copied(lane.push(0, 0, pieces=2, piece=1)) == (1, [1, 0], 1.0)


def test_what_is_held_is_known_to_a_probe_and_counts_once() -> None:
    lane = LaneOfTwo()
    lane.core.policy.hold_cut(1)
    assert lane.push(0, 0) == lane.push(0, 0) == []
    assert lane.held(0) == [100]
    assert answered(lane.core.policy.drop_cut(1)) == [(0, 100)]
    assert (lane.pull(), lane.held(0)) == (1.0, [])


def test_no_more_pushes_are_held_than_may_be_on_their_way() -> None:
    lane = LaneOfTwo()
    lane.core.policy.hold_cut(1)
    for step in range(5):
        assert lane.push(0, step) == []
    [refused] = lane.push(0, 5)
    assert isinstance(refused, Reply)
    assert refused.message.kind == wire.ERROR


def test_orders_about_another_cut_are_ignored() -> None:
    lane = LaneOfTwo()
    lane.core.policy.hold_cut(2)
    assert lane.core.policy.make_cut(1, Moment((0, 0), 0, 0, 1)) == lane.core.policy.drop_cut(1) == []
    assert lane.core.policy.cut is not None


def test_a_cut_by_the_clock_is_due_when_there_is_something_new() -> None:
    lane = LaneOfTwo()
    assert lane.core.request_cut(1) == []
    lane.push(0, 0)
    assert lane.core.request_cut(1) == [DueCut(1)]
    assert lane.core.request_cut(1) == []
    assert lane.core.request_cut(2) == [DueCut(2)]


# Runs with all lanes, and the lead's coordinator.

UNITS = [{"unit": "step", "n": 3}, {"unit": "s", "n": 5}, {"unit": "pass", "n": 1}]
PASSES, BATCHES = 4, 15


def models(cluster: ThreadCluster) -> list[str]:
    return sorted({receipt["tag"] for receipt in cluster.receipts if not receipt.get("checkpoint")})


def checkpoints(cluster: ThreadCluster) -> dict[str, int]:
    """Return the complete checkpoints, by tag with their steps."""
    found: dict[str, list[int]] = {}
    for receipt in list(cluster.receipts):
        if receipt.get("checkpoint"):
            found.setdefault(receipt["tag"], []).append(receipt["step"])
    return {tag: steps[0] for tag, steps in found.items() if len(steps) == len(cluster.pservers)}


@pytest.mark.parametrize(("mode", "every"), [("async", UNITS[0]), ("ssp(99)", UNITS[1]), ("geo(2)", UNITS[2])])
def test_a_trainer_that_blocks_in_its_reader_stops_neither_the_others_nor_their_checkpoints(
    tmp_path: Path, mode: str, every: dict[str, Any]
) -> None:
    """It has pushed once. By passes there is no checkpoint meanwhile: it has ended none."""
    go_on, blocks, made = threading.Event(), threading.Event(), [0]

    def program(ps: Session) -> int:
        def read(pass_: int, rng: object) -> Iterator[int]:
            for batch in range(BATCHES):
                if (ps.rank, pass_, batch) == (1, 0, 5):
                    blocks.set()
                    assert go_on.wait(180)
                yield batch

        w, e = ps.dense("w", 3, SGD(1.0)), ps.embedding("e", 2, SGD(1.0), rows=9)
        for batch in ps.steps(read, passes=PASSES):
            if (ps.rank, batch) == (0, 3):
                assert blocks.wait(180)
            ps.push({w: np.ones(3), e: (np.arange(9), np.ones((9, 2)))}, samples=1)
            cluster.lead.wait_for_cut()
        if ps.rank == 0:
            made[0] = len(checkpoints(cluster))
            go_on.set()
        return ps.step

    facts = {"checkpoints": True, "save_every": every, "ports_num_for_sparse": 1}
    with thread_cluster(tmp_path, 2, 2, mode=mode, **facts) as cluster:
        cluster.lanes[0]._clock = itertools.count(time.monotonic(), 2.0).__next__  # two seconds at each look
        steps = cluster.train(program)
    assert steps == [PASSES * BATCHES] * 2
    assert made[0] == 0 if every["unit"] == "pass" else made[0] >= 3
    assert cluster.lead.dropped == []


def test_a_cut_that_is_copied_is_not_given_up(tmp_path: Path) -> None:
    """A lane has copied, and applies what it has held before it says so."""
    with thread_cluster(tmp_path, 1, 1, mode="async", checkpoints=True) as cluster:
        part = cluster.pservers[0].cuts
        part._patience_s = None
        part.order("hold", 7, {})
        assert wait_until(lambda: cluster.cores[0].policy.cut is not None)
        cluster.cores[0].policy.cut, cluster.cores[0].policy.copied_cut = None, 7
        part.look(7)
        assert part._now is not None
        cluster.cores[0].policy.copied_cut = 0
        part.look(7)
        assert part._now is None


def test_values_do_not_change_while_the_program_works(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2, mode="async", checkpoints=True, save_every=UNITS[0]) as cluster:

        def program(ps: Session) -> None:
            w = ps.dense("w", 3, SGD(1.0))
            for _ in ps.steps(lambda pass_, rng: range(20), passes=1):
                before = w.value.copy()
                cluster.lead.wait_for_cut()
                np.testing.assert_array_equal(w.value, before)
                ps.push({w: np.ones(3)}, samples=1)

        cluster.train(program)
    assert len(checkpoints(cluster)) > 2


def test_a_cut_without_a_push_that_one_pserver_has_is_dropped_by_name_and_the_next_one_is_made(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2, mode="async", checkpoints=True, save_every={"unit": "s", "n": 1e9}) as cluster:
        for pserver in cluster.pservers:
            pserver.cuts._patience_s = 0.2
        dying, other = cluster.session(0), cluster.session(1)
        tables = [ps.dense("w", 3, SGD(1.0)) for ps in (dying, other)]
        assert [table.value.any() for table in tables] == [False, False]  # they are made
        push = dying._client._push_maker(StepContext(0, 0, False), 1)(0, 0, 1, [])
        dying._client._link.post(0, push, lambda reply: None)
        assert wait_until(lambda: cluster.cores[0].trainers[0].pushed == 1)
        cluster.lanes[0].submit(lambda core: core.request_cut())
        assert wait_until(lambda: bool(cluster.lead.dropped))
        [event] = cluster.lead.dropped
        assert event["trainers"] == [0]
        assert "a push of trainer0 did not reach all pservers in 5 s" in event["message"]
        dying._client.close()

        def train(ps: Session, table: Any) -> None:
            for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
                ps.push({table: np.ones(3)}, samples=1)

        with other:
            train(other, tables[1])
            with cluster.session(0, attempt=2) as again:
                train(again, again.dense("w", 3, SGD(1.0)))
                cluster.lanes[0].submit(lambda core: core.request_cut())
                assert wait_until(lambda: len(checkpoints(cluster)) == 1)
    assert list(checkpoints(cluster).values()) == [6]
