"""A run is deadlocked when every trainer waits, but not while any process may still make progress."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.agent.lead.actions import Policy, SendOrder
from clusterctl.agent.lead.deadlock import STACKS_S, SURE_S
from unit.agent.plays import Play

PROCESSES = [("pserver", 0, 0), ("trainer", 0, 0), ("trainer", 1, 1)]
SOON_S = SURE_S + 1.0


def go(**policy: Any) -> Play:
    play = Play(nodes=2, processes=PROCESSES, policy=Policy(**policy)).reach("running")
    play.alive(0, 1)
    return play


def pace(play: Play, pace: str, role: str, rank: int, attempt: int = 1) -> None:
    node = next(node for r, k, node in PROCESSES if (r, k) == (role, rank))
    more = {"for_s": 605.0, "message": f"trainer{1 - rank}"} if pace == "waits" else {}
    play.says(node, "pace", pace=pace, role=role, rank=rank, attempt=attempt, **more)


def test_the_supervisor_of_a_trainer_that_others_wait_for_is_ordered_once_for_each_attempt_to_watch_it() -> None:
    play = go(restarts={"trainer": 3})
    play.says(0, "pace", pace="waits", role="trainer", rank=0, attempt=1, for_s=605.0, message="x", awaits=["trainer1"])

    def watched() -> list[tuple[int, int | None]]:
        orders = [action for action in play.actions if isinstance(action, SendOrder)]
        return [(o.message["attempt"], o.node) for o in orders if o.message["do"] == "awaited"]

    play.pass_time(SOON_S, alive=(0, 1))
    assert watched() == [(1, 1)]
    play.exits("trainer", 1, -9)
    play.pass_time(0.5, alive=(0, 1))
    assert watched() == [(1, 1), (2, 1)], "it may come before the restart"
    play.running(1)
    play.pass_time(SOON_S, alive=(0, 1))
    assert watched() == [(1, 1), (2, 1)]


def all_wait(play: Play) -> None:
    for rank in (0, 1):
        pace(play, "waits", "trainer", rank)


def standstills(play: Play) -> list[bool]:
    """Return one item for each report of a standstill: False for its beginning, True for its end."""
    return [event.get("over", False) for event in play.noted("standstill")]


def test_a_standstill_of_all_trainers_is_reported_once_with_all_stacks_and_again_when_it_is_over() -> None:
    play = go()
    all_wait(play)
    play.pass_time(60, alive=(0, 1))
    (event,) = play.noted("standstill")
    waits = "trainer0 for trainer1; trainer1 for trainer0"
    message = f"the run is stalled: all trainers have been waiting for 608 s, and every process responds ({waits})"
    assert (event["message"], event["stalled_s"]) == (f"{message}; the stacks of all are in their logs", 608.0)
    stacks = [action for action in play.actions if isinstance(action, SendOrder) and action.message["do"] == "stacks"]
    assert stacks == [SendOrder({"do": "stacks", "message": message})]
    assert play.lead.phase == "running"
    pace(play, "moves", "trainer", 1)
    play.pass_time(SOON_S, alive=(0, 1))
    all_wait(play)
    play.pass_time(SOON_S, alive=(0, 1))
    assert standstills(play) == [False, True, False]


@pytest.mark.parametrize(
    ("process", "change"),
    [(("trainer", 1), "moves"), (("trainer", 1), "stalled"), (("pserver", 0), "stalled"), (("pserver", 0), "busy")],
)
def test_trainers_that_wait_for_one_that_works_or_is_stalled_are_not_deadlocked(
    process: tuple[str, int], change: str
) -> None:
    play = go(standstill_fails=True)
    all_wait(play)
    pace(play, change, *process)
    play.pass_time(60, alive=(0, 1))
    assert (standstills(play), play.lead.phase) == ([], "running")


def test_waits_that_end_at_once_when_a_paused_machine_wakes_do_not_count() -> None:
    play = go(standstill_fails=True)
    all_wait(play)
    play.pass_time(SURE_S - 1, alive=(0, 1))
    pace(play, "moves", "trainer", 0)
    play.pass_time(60, alive=(0, 1))
    assert standstills(play) == []


def test_a_restarted_trainer_does_not_count_as_waiting() -> None:
    play = go(restarts={"trainer": 3})
    all_wait(play)
    play.exits("trainer", 1, -9)
    play.pass_time(60, alive=(0, 1))
    assert standstills(play) == []
    pace(play, "waits", "trainer", 1, attempt=2)
    play.pass_time(SOON_S, alive=(0, 1))
    assert standstills(play) == [False]


def test_a_run_that_waits_for_a_rejoin_is_not_deadlocked() -> None:
    play = go(on_trainer_loss="wait", standstill_fails=True)
    all_wait(play)
    play.exits("trainer", 1, -9)
    play.pass_time(60, alive=(0, 1))
    assert (standstills(play), play.lead.phase) == ([], "running")


@pytest.mark.parametrize("ended", ["well", "given up"])
def test_trainers_that_are_done_or_gone_are_ignored(ended: str) -> None:
    play = go(on_trainer_loss="shrink")
    play.exits("trainer", 1, 0 if ended == "well" else -9)
    pace(play, "waits", "trainer", 0)
    play.pass_time(SOON_S, alive=(0, 1))
    assert standstills(play) == [False]


def test_with_standstill_fails_the_run_fails_once_the_stacks_are_written_and_is_not_retried() -> None:
    play = go(standstill_fails=True, restarts={"trainer": 3, "pserver": 3})
    all_wait(play)
    while not standstills(play):
        play.pass_time(0.5, alive=(0, 1))
    assert play.lead.phase == "running"
    play.pass_time(STACKS_S, alive=(0, 1))
    assert play.lead.phase == "stopping"
    cause = play.noted("phase")[-1]["cause"]
    assert (cause["kind"], cause["message"][:20]) == ("stalled", "the run is stalled: ")
    play.pass_time(5, alive=(0, 1))
    assert standstills(play) == [False], "a run that has ended does not continue"
