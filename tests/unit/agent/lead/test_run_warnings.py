"""Warnings of a run: recorded once each while it lives, and all of them in the event of its end."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.lead.actions import MOST_CHARACTERS, MOST_WARNINGS
from unit.agent.plays import Play


def warn(play: Play, kind: str = "lag", message: str = "copies lag behind") -> None:
    play.says(0, "warning", kind=kind, message=message)


def warnings(play: Play) -> list[Any]:
    return [(event["kind"], event["message"]) for event in play.noted("warned")]


def test_a_warning_is_recorded_once_for_each_kind_and_message() -> None:
    play = Play(nodes=1).reach("running")
    for message in ("copies lag behind", "copies lag behind", "copies are gone"):
        warn(play, message=message)
    warn(play, kind="other")
    assert warnings(play) == [("lag", "copies lag behind"), ("lag", "copies are gone"), ("other", "copies lag behind")]
    assert play.noted("warned")[0]["subject"] == 0


def test_their_number_and_length_are_bounded() -> None:
    play = Play(nodes=1).reach("running")
    for number in range(3 * MOST_WARNINGS):
        warn(play, message=f"{number} " + "x" * 10_000)
    assert len(warnings(play)) == MOST_WARNINGS
    assert {len(message) for _, message in warnings(play)} == {MOST_CHARACTERS}


def test_the_end_of_a_run_has_all_warnings_whatever_the_outcome() -> None:
    play = Play(nodes=1).reach("running")
    warn(play)
    play.exits("trainer", 0, code=1)
    play.says(0, "idle")
    assert play.noted("ended")[0]["state"] == "failed"
    assert play.noted("ended")[0]["warnings"] == [{"kind": "lag", "message": "copies lag behind"}]


def test_doubts_about_a_run_that_succeeded_follow_its_warnings() -> None:
    play = Play(nodes=1).reach("running")
    warn(play)
    play.says(0, "exited", role="trainer", rank=0, exit_code=0, stopping=False, t=1.0, message="", pushed=False)
    play.says(0, "exited", role="pserver", rank=0, exit_code=0, stopping=False, t=1.0, message="")
    play.says(0, "idle")
    assert [one["kind"] for one in play.noted("ended")[0]["warnings"]] == ["lag", "no_push"]
