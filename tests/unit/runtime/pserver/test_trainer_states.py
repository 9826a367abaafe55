"""What a lane knows of the states that trainers have of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime.checkpoint.writer import Cut, write_piece
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire


def core_of(mode: str) -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse(mode)))
    for rank in range(2):
        hello(core, rank)
    return core


def hello(core: ServerCore, rank: int, attempt: int = 1) -> dict[str, Any]:
    parts = [wire.json_part({"trainers": 2})]
    (reply,) = core.handle(rank, wire.Message(wire.HELLO, rank, 1, attempt=attempt, parts=parts))
    assert isinstance(reply, Reply)
    return reply.message.json()


def push(core: ServerCore, rank: int, step: int, **facts: Any) -> None:
    parts = [wire.json_part(facts)] if facts else []
    core.handle(rank, wire.Message(wire.PUSH, rank, 9 + step, step=step, samples=1, batch=step, parts=parts))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_newest_push_says_if_a_trainer_has_a_state(mode: str) -> None:
    core = core_of(mode)
    push(core, 0, 0, state=True)
    push(core, 1, 0)
    states = [cursor.get("state") for cursor in core.trainers.cursors()]
    assert states == [True, None]
    assert ["state" in hello(core, rank, attempt=2) for rank in range(2)] == [True, False]


@pytest.mark.parametrize("said", [False, 1, "yes", None])
def test_only_true_means_that_there_is_a_state(said: Any) -> None:
    core = core_of("async")
    push(core, 0, 0, state=said)
    assert "state" not in core.trainers.cursors()[0]


def test_a_resumed_lane_knows_of_states_unless_the_number_of_trainers_has_changed() -> None:
    core = core_of("sync")
    for rank in range(2):
        push(core, rank, 0, state=True)
    cursors = list(core.trainers.cursors())
    same, other = core_of("sync"), core_of("sync")
    same.trainers.restore(cursors, 1)
    other.trainers.restore(cursors[:1], 1)
    assert [trainer.state for trainer in same.trainers.by_rank.values()] == [True, True]
    assert [trainer.state for trainer in other.trainers.by_rank.values()] == [False, False]


def test_the_receipt_of_a_checkpoint_names_the_states_of_those_that_have_not_left(tmp_path: Path) -> None:
    core = core_of("async")
    for rank in range(2):
        push(core, rank, 0, state=True)
    core.handle(0, wire.Message(wire.BYE, 0, 20))
    cut = Cut("JOB", "0001", "step-000000001", 0, 1, "async", 0, 0, 1)
    assert write_piece(tmp_path, cut, [], cursors=core.trainers.cursors())["states"] == [1]
    core.handle(1, wire.Message(wire.BYE, 1, 20))
    assert "states" not in write_piece(tmp_path, cut, [], cursors=core.trainers.cursors())
