"""A run in which every trainer waits stands still; one in which anybody may yet do something does not."""

from __future__ import annotations

from typing import Any

import pytest

from agent.plays import Play
from clusterctl.agent.lead.actions import Policy, SendOrder
from clusterctl.agent.lead.deadlock import STACKS_S, SURE_S

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


def all_wait(play: Play) -> None:
    for rank in (0, 1):
        pace(play, "waits", "trainer", rank)


def told(play: Play) -> list[bool]:
    """Of every standstill its beginning (False) and its end (True)."""
    return [event.get("over", False) for event in play.noted("standstill")]


def test_when_all_trainers_wait_it_is_told_once_with_the_stacks_of_all_and_again_when_it_is_over() -> None:
    play = go()
    all_wait(play)
    play.pass_time(60, alive=(0, 1))
    (event,) = play.noted("standstill")
    who = "trainer0 for trainer1; trainer1 for trainer0"
    words = f"the run is stalled: all trainers have been waiting for 608 s, and every process responds ({who})"
    assert (event["message"], event["stalled_s"]) == (f"{words}; the stacks of all are in their logs", 608.0)
    stacks = [action for action in play.actions if isinstance(action, SendOrder) and action.message["do"] == "stacks"]
    assert stacks == [SendOrder({"do": "stacks", "message": words})]
    assert play.lead.phase == "running"
    pace(play, "moves", "trainer", 1)
    play.pass_time(SOON_S, alive=(0, 1))
    all_wait(play)
    play.pass_time(SOON_S, alive=(0, 1))
    assert told(play) == [False, True, False]


@pytest.mark.parametrize(
    ("who", "how"), [(("trainer", 1), "moves"), (("trainer", 1), "stalled"), (("pserver", 0), "stalled")]
)
def test_as_long_as_one_of_them_works_or_is_stalled_the_others_merely_wait_for_it(
    who: tuple[str, int], how: str
) -> None:
    play = go(standstill_fails=True)
    all_wait(play)
    pace(play, how, *who)
    play.pass_time(60, alive=(0, 1))
    assert (told(play), play.lead.phase) == ([], "running")


def test_waits_that_are_over_at_once_when_a_paused_machine_wakes_are_none() -> None:
    play = go(standstill_fails=True)
    all_wait(play)
    play.pass_time(SURE_S - 1, alive=(0, 1))
    pace(play, "moves", "trainer", 0)
    play.pass_time(60, alive=(0, 1))
    assert told(play) == []


def test_a_trainer_that_begins_again_is_not_one_that_waited_before() -> None:
    play = go(restarts={"trainer": 3})
    all_wait(play)
    play.exits("trainer", 1, -9)
    play.pass_time(60, alive=(0, 1))
    assert told(play) == []
    pace(play, "waits", "trainer", 1, attempt=2)
    play.pass_time(SOON_S, alive=(0, 1))
    assert told(play) == [False]


def test_a_run_that_waits_for_a_rejoin_does_not_stand_still() -> None:
    play = go(on_trainer_loss="wait", standstill_fails=True)
    all_wait(play)
    play.exits("trainer", 1, -9)
    play.pass_time(60, alive=(0, 1))
    assert (told(play), play.lead.phase) == ([], "running")


@pytest.mark.parametrize("ended", ["well", "given up"])
def test_trainers_that_are_done_or_gone_are_not_asked_for(ended: str) -> None:
    play = go(on_trainer_loss="shrink")
    play.exits("trainer", 1, 0 if ended == "well" else -9)
    pace(play, "waits", "trainer", 0)
    play.pass_time(SOON_S, alive=(0, 1))
    assert told(play) == [False]


def test_where_it_is_to_fail_the_run_does_when_the_stacks_are_written_and_is_not_tried_again() -> None:
    play = go(standstill_fails=True, restarts={"trainer": 3, "pserver": 3})
    all_wait(play)
    while not told(play):
        play.pass_time(0.5, alive=(0, 1))
    assert play.lead.phase == "running"
    play.pass_time(STACKS_S, alive=(0, 1))
    assert play.lead.phase == "stopping"
    cause = play.noted("phase")[-1]["cause"]
    assert (cause["kind"], cause["message"][:20]) == ("stalled", "the run is stalled: ")
    play.pass_time(5, alive=(0, 1))
    assert told(play) == [False], "a run that is ended does not go on"
