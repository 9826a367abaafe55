"""The lead's handling of recoverable failures: restarts, roll backs, and nodes given up or waited for."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.agent.lead.actions import Policy, SendOrder
from clusterctl.agent.lead.restart_policy import FORGIVEN_AFTER_S
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CompleteCheckpoint
from unit.agent.plays import NODE_GRACE_S, Play

THRICE = {"pserver": 3, "trainer": 3}
APART = [("pserver", 0, 0), ("pserver", 1, 1), ("trainer", 0, 0), ("trainer", 1, 1), ("trainer", 2, 2)]


def orders(play: Play, do: str) -> list[dict[str, Any]]:
    return [action.message for action in play.actions if isinstance(action, SendOrder) and action.message["do"] == do]


def go(together: bool = True, loss: str = "fail", restarts: Any = THRICE, phase: str = "running", **more: Any) -> Play:
    on_node_loss = "wait" if loss == "wait" else "fail"
    policy = Policy(restarts=restarts, on_trainer_loss=loss, on_node_loss=on_node_loss, together=together, **more)
    return Play(nodes=3, processes=APART, policy=policy).reach(phase)


def keep(play: Play, step: int) -> str:
    tag = f"step-{step:09d}"
    play.says(0, "kept", tag=tag, step=step, steps=[])
    return tag


def restart_all(play: Play) -> None:
    """Every node becomes ready for the new epoch, pservers come up, and trainers run."""
    epoch = play.lead.epoch
    for node in range(3):
        play.says(node, "hello", epoch=epoch)
    again = orders(play, "again")[-1]["attempts"]
    for rank in (0, 1):
        if f"pserver{rank}" in again:
            play.ready(rank)
    for rank in (0, 1, 2):
        if f"trainer{rank}" in again:
            play.running(rank)


def test_a_failed_trainer_is_restarted_alone_with_exponential_backoff() -> None:
    play = go()
    for attempt, wait_s in ((2, 1), (3, 2), (4, 4)):
        play.exits("trainer", 1, -9)
        order = orders(play, "respawn")[-1]
        assert (order["role"], order["rank"], order["attempt"], order["in_s"]) == ("trainer", 1, attempt, wait_s)
        assert order["pservers"] == ["host:7000", "host:7001"]
        note = play.noted("restarting")[-1]
        assert (note["count"], note["node"], note["attempt"]) == (f"restart {attempt - 1} of 3", 1, attempt)
    assert play.lead.phase == "running"
    play.now += 20
    play.exits("trainer", 1, -9)
    assert play.lead.phase == "stopping"
    cause = play.noted("phase")[-1]["cause"]
    assert cause["message"] == "exited with code -9; restarted 3 times, the RESTARTS limit"


def test_failures_of_an_hour_ago_do_not_count() -> None:
    play = go()
    for _ in range(9):
        play.exits("trainer", 1, -9)
        play.now += FORGIVEN_AFTER_S / 3
    assert play.lead.phase == "running"


def test_a_program_that_exits_before_it_did_any_work_is_not_restarted() -> None:
    play = go(phase="trainers")
    play.says(1, "exited", role="trainer", rank=1, exit_code=1, stopping=False, worked=False, message="", tail=[])
    assert play.lead.phase == "stopping"


@pytest.mark.parametrize(("unfinished", "phase"), [("not_connected", "stopping"), ("not_left", "trainers")])
def test_a_trainer_that_exits_unfinished_is_restarted_if_it_had_connected(unfinished: str, phase: str) -> None:
    play = go(phase="trainers")
    process = {"role": "trainer", "rank": 1, "exit_code": 0, "stopping": False, "worked": False}
    play.says(1, "exited", **process, message="exited with code 0", unfinished=unfinished)
    assert play.lead.phase == phase
    assert len(orders(play, "respawn")) == (phase == "trainers")


def test_pservers_are_told_of_a_trainer_that_left_without_a_message_to_them() -> None:
    play = go()
    process = {"role": "trainer", "exit_code": 0, "stopping": False, "worked": True}
    for rank, unsaid in ((0, False), (1, True), (2, True)):
        play.says(rank, "exited", **process, rank=rank, message="exited with code 0", unsaid=unsaid)
    assert [order["ranks"] for order in orders(play, "left")] == [[1], [2]]
    assert play.orders()[-2:] == ["left", "finish"]


@pytest.mark.parametrize("loss", ["fail", "shrink", "wait"])
def test_a_failure_that_would_only_recur_ends_the_run_whatever_the_policy(loss: str) -> None:
    play = go(loss=loss)
    process = {"role": "trainer", "rank": 1, "exit_code": 1, "stopping": False, "worked": True, "tail": []}
    play.says(1, "exited", **process, message="the loss is not finite", hopeless=True)
    assert play.lead.phase == "stopping"
    assert play.noted("phase")[-1]["cause"]["message"] == "the loss is not finite"


def test_news_of_an_earlier_attempt_is_ignored() -> None:
    play = go()
    play.exits("trainer", 1, -9)
    late = {"role": "trainer", "rank": 1, "attempt": 1, "exit_code": 1, "stopping": False, "message": "", "tail": []}
    assert play.says(1, "exited", **late) == []
    assert play.says(1, "idle", attempts={"trainer1": 1}) == []
    assert play.lead.phase == "running"


def test_in_sync_mode_a_lost_pserver_rolls_all_back_to_the_newest_checkpoint() -> None:
    play = go()
    keep(play, 100)
    newest = keep(play, 200)
    play.says(0, "saved", tag="step-000000300", checkpoint=True, rank=0, role="pserver", step=300)
    play.exits("trainer", 0)
    play.exits("pserver", 1, -11)
    order = orders(play, "again")[-1]
    assert order["attempts"] == {f"{role}{rank}": 2 for role, rank, _ in APART}
    assert (order["epoch"], order["in_s"], order["recover"]) == (1, 1.0, {"tag": newest, "step": 200, "left": {}})
    rolled = play.noted("rolled_back")[-1]
    assert (rolled["tag"], rolled["whole"]) == (newest, True)
    restart_all(play)
    assert play.lead.phase == "running", "a finished trainer has been restarted too"
    play.says(1, "saved", tag="step-000000300", checkpoint=True, rank=1, role="pserver", step=300)
    assert play.manifests() == [], "an earlier receipt does not count"
    for rank in (0, 1, 2):
        play.exits("trainer", rank)
    assert play.lead.phase == "finishing"


def test_a_resumed_run_does_not_begin_anew_if_its_only_checkpoint_cannot_be_loaded() -> None:
    resumed = CheckpointRetention(3, None, CompleteCheckpoint("step-000000100", 100))
    play = Play(nodes=3, processes=APART, retention=resumed, policy=Policy(restarts=THRICE)).reach("running")
    play.exits("pserver", 1, -9)
    assert orders(play, "again")[-1]["recover"]["tag"] == "step-000000100"
    for node in range(3):
        play.says(node, "hello", epoch=1)
    play.exits("pserver", 0, 1)
    assert play.phases()[-1] == "stopping"


def test_outside_sync_mode_other_pservers_and_finished_trainers_are_left_alone() -> None:
    play = go(together=False)
    tag = keep(play, 100)
    play.says(2, "exited", role="trainer", rank=2, exit_code=0, stopping=False, pushes=40, message="", tail=[])
    play.exits("pserver", 1, -9)
    order = orders(play, "again")[-1]
    assert order["attempts"] == {"pserver1": 2, "trainer0": 2, "trainer1": 2}
    assert order["recover"] == {"tag": tag, "step": 100, "left": {"2": 40}}
    restart_all(play)
    play.exits("trainer", 0)
    play.exits("trainer", 1)
    assert play.lead.phase == "finishing"


def test_a_checkpoint_that_a_pserver_cannot_load_is_skipped() -> None:
    play = go()
    before = keep(play, 100)
    keep(play, 200)
    play.exits("pserver", 1, -9)
    for node in range(3):
        play.says(node, "hello", epoch=1)
    play.exits("pserver", 0, 1)
    assert "checkpoint step-000000200 cannot be used by pserver0: last words" in play.noted("log")[-1]["message"]
    assert orders(play, "again")[-1]["recover"]["tag"] == before
    restart_all(play)
    assert play.lead.phase == "running"


def test_programs_that_can_only_start_together_are_all_restarted() -> None:
    play = go(whole=True)
    play.exits("trainer", 2, 1)
    assert set(orders(play, "again")[-1]["attempts"]) == {f"{role}{rank}" for role, rank, _ in APART}


def test_shrink_continues_without_a_trainer_and_ends_when_the_others_are_done() -> None:
    play = go(loss="shrink", restarts={})
    play.exits("trainer", 1, 1)
    assert orders(play, "shrink") == [{"do": "shrink", "ranks": [1]}]
    assert [note["rank"] for note in play.noted("lost")] == [1]
    play.exits("trainer", 0)
    play.exits("trainer", 2)
    assert play.lead.phase == "finishing"


def test_shrink_cannot_do_without_the_last_trainer_or_a_pserver() -> None:
    play = go(loss="shrink", restarts={})
    for rank in (0, 1, 2):
        assert play.lead.phase == "running"
        play.exits("trainer", rank, 1)
    assert play.lead.phase == "stopping"
    play = go(loss="shrink")
    play.lose(1)
    assert play.lead.phase == "stopping"


def test_shrink_continues_without_a_node_of_trainers_and_does_not_wait_for_it_at_the_end() -> None:
    play = go(loss="shrink")
    play.lose(2)
    play.exits("trainer", 0)
    play.exits("trainer", 1)
    for node in (0, 1):
        play.says(node, "idle")
    assert play.ended()["state"] == "succeeded"


def test_a_roll_back_after_a_shrink_knows_which_trainers_are_gone() -> None:
    play = go(loss="shrink", restarts={"pserver": 1, "trainer": 0})
    play.exits("trainer", 1, 1)
    play.exits("pserver", 0, -9)
    order = orders(play, "again")[-1]
    assert "trainer1" not in order["attempts"]
    assert order["recover"]["left"] == {"1": 0}


def test_wait_keeps_orders_for_a_node_that_is_cut_off_until_it_is_back() -> None:
    play = go(loss="wait")
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert [note["node"] for note in play.noted("lost")] == [2]
    order = orders(play, "respawn")[-1]
    assert (order["rank"], order["attempt"]) == (2, 2)
    play.pass_time(3 * NODE_GRACE_S, alive=(0, 1))
    assert play.lead.phase == "running"
    play.alive(2)
    assert [note["node"] for note in play.noted("rejoined")] == [2]
    for rank in (0, 1, 2):
        play.exits("trainer", rank)
    assert play.lead.phase == "finishing"


@pytest.mark.parametrize("phase", ["gathering", "pservers", "trainers", "running", "finishing"])
def test_a_node_that_considered_the_lead_lost_is_lost_to_the_lead(phase: str) -> None:
    """The lead's machine was stopped for longer than the grace period; then it reads what the others sent."""
    play = Play(nodes=3, policy=Policy(restarts={"trainer": 5, "pserver": 5})).reach(phase)
    for node in (1, 2):
        if phase == "running":
            play.exits("trainer", node, -15, stopping=True)
            play.exits("pserver", node, -15, stopping=True)
        play.says(node, "idle", stopping=True)
        play.lose(node)
    (stopping,) = [note for note in play.noted("phase") if note["phase"] == "stopping"]
    assert (stopping["cause"]["kind"], stopping["cause"]["node"]) == ("node_lost", 1)
    assert "lost contact with the lead" in stopping["cause"]["message"]
    play.says(0, "idle")
    assert play.ended()["not_heard_of"] == []


def test_a_trainer_that_is_waited_for_restarts_on_request() -> None:
    play = go(loss="wait", restarts={})
    play.exits("trainer", 1, 1)
    (held,) = play.noted("held")
    assert (held["role"], held["rank"]) == ("trainer", 1)
    assert "the run is waiting for start --rejoin" in held["message"]
    assert play.says(0, "rejoin") == []
    play.says(1, "rejoin")
    assert (orders(play, "respawn")[-1]["rank"], orders(play, "respawn")[-1]["attempt"]) == (1, 2)
    assert play.noted("rejoined") == [{"event": "rejoined", "role": "trainer", "rank": 1, "node": 1}]


@pytest.mark.parametrize("phase", ["gathering", "running", "finishing"])
def test_a_run_ends_at_its_time_limit(phase: str) -> None:
    play = go(phase=phase, time_limit_s=60.0)
    play.pass_time(60, alive=(0, 1, 2))
    assert play.lead.phase == phase
    play.pass_time(1, alive=(0, 1, 2))
    assert play.lead.phase == "stopping"
    assert play.noted("phase")[-1]["cause"] == {"kind": "time_limit", "message": "the time limit of 60 s was exceeded"}
