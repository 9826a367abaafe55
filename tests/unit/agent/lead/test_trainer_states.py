"""The states of trainers: a checkpoint is complete with them only, and a trainer that lost its own rolls all back."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.agent.lead.actions import Policy
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CompleteCheckpoint
from clusterctl.agent.lead.saving.cuts import CHECKPOINT
from unit.agent.plays import Play


def tag(step: int) -> str:
    return f"step-{step:09d}"


def piece(play: Play, rank: int, step: int, *states: int) -> list[Any]:
    more = {"states": list(states)} if states else {}
    about = {"tag": tag(step), "step": step, "checkpoint": True}
    return play.says(rank, "saved", role="pserver", rank=rank, attempt=play.lead.epoch + 1, **about, **more)


def state(play: Play, rank: int, step: int, attempt: int = 1) -> list[Any]:
    return play.says(rank, "saved", role="trainer", rank=rank, attempt=attempt, tag=tag(step), checkpoint=True)


def complete(play: Play, step: int) -> None:
    piece(play, 0, step)
    piece(play, 1, step)
    play.says(0, "kept", tag=tag(step), step=step, steps=[])


def lose_state(play: Play, rank: int, attempt: int) -> list[Any]:
    return play.says(rank, "state_lost", role="trainer", rank=rank, attempt=attempt, message="no state at step 5")


def test_a_checkpoint_is_complete_when_all_its_states_are_written() -> None:
    play = Play(nodes=2).reach("running")
    piece(play, 0, 10, 0, 1)
    piece(play, 1, 10, 0, 1)
    state(play, 1, 10)
    assert play.manifests() == []
    (whole,) = state(play, 0, 10)
    assert [(one["role"], one["rank"]) for one in (*whole.receipts, *whole.states)] == [
        *(("pserver", 0), ("pserver", 1)),
        *(("trainer", 0), ("trainer", 1)),
    ]


def test_states_may_come_before_the_pieces_and_those_that_do_not_belong_to_it_do_not_count() -> None:
    play = Play(nodes=2).reach("running")
    for rank in (0, 1):
        state(play, rank, 10)
    assert play.manifests() == []
    piece(play, 0, 10, 1)
    (whole,) = piece(play, 1, 10)
    assert [one["rank"] for one in whole.states] == [1]


def test_a_pserver_that_was_restarted_may_not_know_of_all_states() -> None:
    play = Play(nodes=2).reach("running")
    piece(play, 0, 10)
    piece(play, 1, 10, 0)
    assert play.manifests() == []
    state(play, 0, 10)
    assert len(play.manifests()) == 1


@pytest.mark.parametrize("pieces_first", [True, False])
def test_a_checkpoint_is_void_if_a_trainer_leaves_before_it_has_written_its_state(pieces_first: bool) -> None:
    play = Play(nodes=2).reach("running")
    if pieces_first:
        piece(play, 0, 10, 0, 1)
        piece(play, 1, 10, 0, 1)
    play.exits("trainer", 1)
    if not pieces_first:
        piece(play, 0, 10, 0, 1)
        piece(play, 1, 10, 0, 1)
    (dropped,) = play.noted("cut_dropped")
    assert (dropped["trainers"], dropped["saves"]) == ([1], ["checkpoint"])
    state(play, 0, 10)
    assert play.manifests() == []
    piece(play, 0, 20, 0)
    piece(play, 1, 20, 0)
    state(play, 0, 20)
    assert [whole.tag for whole in play.manifests()] == [tag(20)]


def test_outside_sync_cuts_go_on_while_a_trainer_is_held_and_expect_its_state_when_it_is_back() -> None:
    policy = Policy(together=False, on_trainer_loss="wait")
    play = Play(nodes=1, policy=policy, processes=[("pserver", 0, 0), *trainers(2)]).reach("running")
    cut = {"role": "pserver", "rank": 0}
    play.says(0, "cut", phase="due", purpose=CHECKPOINT, **cut)
    play.says(0, "cut", phase="held", cut=1, counts=[5, 5], step=10, passes=0, **cut)
    play.says(0, "cut", phase="made", cut=1, table_sums=[1], **cut)
    piece(play, 0, 10, 0, 1)
    play.says(0, "cut", phase="due", purpose=CHECKPOINT, **cut)
    orders = [action.message for action in play.exits("trainer", 1, 1) if hasattr(action, "message")]
    assert [order["order"] for order in orders if order["do"] == "cut"] == ["hold"]
    assert [event["trainers"] for event in play.noted("cut_dropped")] == [[1]]
    play.lead._saves.come_back(("trainer", 1))
    piece(play, 0, 20, 0, 1)
    state(play, 0, 20)
    assert play.manifests() == []
    (whole,) = state(play, 1, 20)
    assert whole.tag == tag(20)


def trainers(count: int) -> list[tuple[str, int, int]]:
    return [("trainer", rank, 0) for rank in range(count)]


def test_a_trainer_that_lost_its_state_brings_all_back_to_the_newest_checkpoint() -> None:
    play = Play(nodes=2, policy=Policy(restarts={"trainer": 1})).reach("running")
    complete(play, 10)
    play.exits("trainer", 1, 1)
    lose_state(play, 1, attempt=2)
    (lost,), (back,) = play.noted("state_lost"), play.noted("rolled_back")
    assert (lost["role"], lost["rank"], lost["node"], lost["message"]) == ("trainer", 1, 1, "no state at step 5")
    assert (back["tag"], back["whole"]) == (tag(10), True)
    assert lose_state(play, 1, attempt=2) == [], "once"


def test_a_checkpoint_whose_state_is_damaged_is_discarded() -> None:
    play = Play(nodes=2, policy=Policy(restarts={"trainer": 1})).reach("running")
    complete(play, 10)
    complete(play, 20)
    play.exits("trainer", 1, 1)
    lose_state(play, 1, attempt=2)
    restart(play)
    lose_state(play, 1, attempt=3)
    assert [event["tag"] for event in play.noted("rolled_back")] == [tag(20), tag(10)]


def test_a_resumed_run_without_a_sound_checkpoint_fails() -> None:
    first = CheckpointRetention(3, first=CompleteCheckpoint(tag(5), 5))
    play = Play(nodes=2, retention=first).reach("running")
    lose_state(play, 1, attempt=1)
    assert play.lead.phase == "stopping"
    assert "no state at step 5" in play.noted("phase")[-1]["cause"]["message"]


def restart(play: Play) -> None:
    """Bring the run up again after a roll back."""
    for node in range(2):
        play.says(node, "hello", epoch=play.lead.epoch)
    for rank in range(2):
        play.ready(rank)
    for rank in range(2):
        play.running(rank)
    assert play.lead.phase == "running"
