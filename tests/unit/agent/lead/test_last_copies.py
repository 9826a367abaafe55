"""A run that has succeeded, and waits for the copies of its last save."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.agent.lead.actions import Policy
from clusterctl.agent.lead.saving.copies import END_LIMIT_S, CopyPolicy
from unit.agent.plays import Play

WRITTEN: dict[str, Any] = {"tag": "pass-00000", "checkpoint": False, "bytes": 9, "sha256": "ab"}


def waiting(**options: Any) -> Play:
    """Return a run whose processes have ended, while node 1 copies what node 0 has saved."""
    play = Play(copies=CopyPolicy({1: (0,)}), **options)
    for node in range(2):
        play.says(node, "hello", pieces=f"h{node}:1")
    play.reach("finishing")
    play.says(0, "written", **WRITTEN)
    for node in range(2):
        play.says(node, "idle")
    assert play.lead.phase == "finishing"
    return play


def test_it_ends_when_they_are_made() -> None:
    play = waiting()
    play.says(1, "copied", tag="pass-00000", of="copy", bytes=5)
    assert play.ended()["state"] == "succeeded"


def test_it_ends_after_a_minute_without_them_and_says_so() -> None:
    play = waiting()
    play.pass_time(END_LIMIT_S + 2, alive=(0, 1))
    assert play.ended()["state"] == "succeeded"
    assert [note["tag"] for note in play.noted("copying")] == ["pass-00000"]
    assert "ended before pass-00000 was copied" in play.noted("log")[-1]["message"]
    assert [doubt["kind"] for doubt in play.ended()["warnings"]] == ["model_not_copied"]


@pytest.mark.parametrize("how", ["stop", "time limit", "failure"])
def test_nothing_turns_its_success_into_a_failure(how: str) -> None:
    play = waiting(policy=Policy(time_limit_s=20.0))
    if how == "stop":
        play.says(0, "stop_wanted")
    elif how == "failure":
        play.says(1, "failed", message="no space", errno=None)
    else:
        play.pass_time(25.0, alive=(0, 1))
    assert play.ended()["state"] == "succeeded"


def test_a_node_that_dies_meanwhile_is_not_waited_for() -> None:
    play = waiting()
    play.lose(1)
    assert play.ended()["state"] == "succeeded"
    assert [doubt["kind"] for doubt in play.ended()["warnings"]] == ["model_lost"]
