"""Checkpoints in async, ssp and geo mode: every trainer stops for one on every lane, even after restarts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.modes import Mode
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire
from tests.runtime.cluster import DEADLINE_S, thread_cluster
from tests.support.processes import wait_until

SPEC = TableSpec("w", "dense", (4,), SGD(1.0), zeros())
Answers = dict[tuple[int, int], wire.Message]


class LaneOfTwo:
    """One lane and two trainers, which have made `w` there unless it is new. Answers are by (rank, request)."""

    def __init__(self, mode: str, *, new: bool = False, number: int = 0) -> None:
        self.core = ServerCore(LaneState(number, Layout(1 + number), 2, mode=Mode.parse(mode)))
        self.attempts = [0, 0]
        for rank in range(2):
            self.begin(rank)
            if not new:
                self.create(rank)

    def begin(self, rank: int) -> dict[str, object]:
        """Start a new attempt of a trainer and return the reply to its hello."""
        self.attempts[rank] += 1
        [reply] = self._handle(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": 2})]).values()
        return dict(reply.json())

    def create(self, rank: int, cut: int = 0) -> Answers:
        return self._handle(wire.CREATE, rank, 2, cut=cut, parts=[wire.json_part(SPEC.to_json())])

    def push(self, rank: int, step: int) -> Answers:
        parts = [wire.Part(wire.DENSE, -np.ones(4, np.float32), SPEC.key)] if self.core.state.lane == 0 else []
        return self._handle(wire.PUSH, rank, 100 + step, step=step, samples=1, parts=parts)

    def stop(self, rank: int, cut: int) -> Answers:
        return self._handle(wire.CUT, rank, 500 + cut, cut=cut, version=self.core.step)

    def pull(self, rank: int) -> Answers:
        return self._handle(wire.PULL, rank, 900, parts=[wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)])

    def _handle(self, kind: int, rank: int, request: int, **fields: object) -> Answers:
        message = wire.Message(kind, rank, request, attempt=self.attempts[rank], **fields)  # type: ignore[arg-type]
        return answers(self.core.handle(rank, message))


def answers(outputs: Sequence[Output]) -> Answers:
    replies = [output.message for output in outputs if isinstance(output, Reply)]
    assert all(reply.kind == wire.OK for reply in replies)
    assert all(isinstance(output, (Reply, Save)) for output in outputs)
    return {(reply.rank, reply.request): reply for reply in replies}


def values(reply: wire.Message) -> list[float]:
    return [float(value) for part in reply.parts for value in part.array]


def test_the_slowest_lets_the_others_go_when_it_stops_for_a_checkpoint() -> None:
    """A trainer that came back learns of the checkpoint before the one that waits for it does."""
    lane = LaneOfTwo("ssp(1)")
    assert [list(lane.push(0, step)) for step in range(2)] == [[(0, 100)], []]
    lane.core.request_cut()
    lane.begin(1)
    released = lane.stop(1, cut=1)
    assert list(released) == [(0, 101)]
    assert released[0, 101].cut == 1, "it learns of the checkpoint with the answer"
    assert list(lane.stop(0, cut=1)) == [(1, 501)], "it has stopped, and continues when it may have values"
    assert lane.pull(0) == {}
    caught_up = lane.push(1, 0)
    assert sorted(caught_up) == [(0, 501), (0, 900), (1, 100)]
    assert values(caught_up[0, 501]) == values(caught_up[0, 900]) == [3.0] * 4, "not the values of its early answer"


def test_a_pull_of_a_trainer_that_came_back_does_not_wait_for_one_that_has_stopped() -> None:
    lane = LaneOfTwo("ssp(1)")
    for step in range(2):
        lane.push(0, step)
    lane.begin(0)
    assert lane.pull(0) == {}
    assert (0, 900) in lane.stop(1, cut=1)


@pytest.mark.parametrize("mode", ["async", "half-async", "ssp(9)", "geo(2)"])
def test_a_stop_ends_with_its_attempt(mode: str) -> None:
    """Else the checkpoint would be made without the next attempt, which other lanes still wait for."""
    lane = LaneOfTwo(mode)
    assert lane.stop(0, cut=1) == {}
    facts = lane.begin(0)
    assert (facts["cut"], facts["cuts_made"]) == (1, 0)
    assert lane.stop(1, cut=1) == {}
    assert sorted(lane.stop(0, cut=1)) == [(0, 501), (1, 501)]
    assert lane.begin(0)["cuts_made"] == 1


def test_a_stop_ends_with_its_epoch() -> None:
    lane = LaneOfTwo("async")
    lane.stop(0, cut=1)
    lane.core.begin_epoch(0)
    assert lane.stop(1, cut=1) == {}


def test_a_checkpoint_that_a_lane_has_made_waits_for_nobody_there() -> None:
    lane = LaneOfTwo("async")
    lane.stop(0, cut=1)
    lane.stop(1, cut=1)
    lane.begin(0)
    assert list(lane.stop(0, cut=1)) == [(0, 501)]


def test_a_lane_that_comes_late_counts_the_checkpoints_before_it_as_made() -> None:
    """Its first table may be made while one trainer has stopped on it for a checkpoint that the other took before."""
    lane = LaneOfTwo("async", new=True)
    lane.create(0, cut=3)
    assert lane.stop(0, cut=4) == {}
    assert (0, 504) in lane.create(1, cut=4)
    assert lane.begin(1)["cuts_made"] == 4


def test_a_trainer_that_stopped_for_a_newer_checkpoint_elsewhere_holds_nobody_back_here() -> None:
    """This lane has made the checkpoint with the first attempt of trainer 1; another lane still waits for the second.

    Trainer 0, which waits there, is not at work, although this lane has answered it.
    """
    lane = LaneOfTwo("ssp(0)")
    lane.stop(1, cut=1)
    assert sorted(lane.stop(0, cut=1)) == [(0, 501), (1, 501)]
    lane.begin(1)
    assert list(lane.push(1, 0)) == [(1, 100)]


def test_a_trainer_that_others_wait_for_stops_again_though_it_is_ahead() -> None:
    lane = LaneOfTwo("ssp(0)")
    lane.push(0, 0)
    lane.begin(1)
    lane.stop(1, cut=1)
    assert list(lane.stop(0, cut=1)) == [(1, 501)]
    answers = lane.stop(1, cut=2)
    assert list(answers) == [(0, 501)]
    assert answers[0, 501].flags & wire.STOP_AGAIN
    assert (1, 502) in lane.stop(0, cut=2)


def test_a_trainer_that_has_no_table_on_a_lane_yet_holds_nobody_back_there() -> None:
    """Except on the first lane, which all use."""
    for number, answered in ((0, []), (1, [(0, 100)])):
        lane = LaneOfTwo("ssp(0)", new=True, number=number)
        lane.create(0)
        assert list(lane.push(0, 0)) == answered


def test_a_probe_of_a_new_attempt_is_answered_before_its_hello_in_any_epoch() -> None:
    lane = LaneOfTwo("async")
    lane.core.begin_epoch(1)
    [reply] = lane.core.handle(0, wire.Message(wire.PROBE, 0, 7, attempt=2))
    assert isinstance(reply, Reply)
    assert reply.message.kind == wire.STATE


def test_a_trainer_that_died_while_it_stopped_stops_again_for_the_lanes_that_wait(tmp_path: Path) -> None:
    """Its first attempt reaches only the first of two lanes; the other trainer waits on the second."""
    with thread_cluster(tmp_path, 2, 2, mode="async") as cluster:
        first = cluster.session(0)
        first.dense("w", 4, SGD(1.0))

        def train(rank: int, attempt: int) -> None:
            with cluster.session(rank, attempt=attempt) as ps:
                w = ps.dense("w", 4, SGD(1.0))
                for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
                    ps.push({w: np.ones(4)}, samples=1)

        cluster.lanes[0].submit(announce)
        other = threading.Thread(target=train, args=(1, 1), daemon=True)
        other.start()
        assert wait_until(lambda: all(core.policy.held(1) for core in cluster.cores)), "the other has stopped"
        first._client.ask(wire.CUT, [0], cut=1, version=1)
        first._client.close()
        train(0, 2)
        other.join(DEADLINE_S)
        assert not other.is_alive()
        assert {core.policy.cuts_made for core in cluster.cores} == {1}


def announce(core: ServerCore) -> list[Output]:
    core.request_cut()
    return []
