"""Doubts about runs that succeed: from the last words of trainers and from the values that were saved."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.lead.saving.saves import find_doubts
from unit.agent.plays import Play


def left(pushed: bool | None = True, losses: tuple[int, int] = (5, 5)) -> Any:
    return {"do": "exited", "pushed": pushed, "losses": list(losses)}


def kinds(*trainers: Any, **not_finite: str) -> list[str]:
    return [one["kind"] for one in find_doubts(trainers, not_finite)]


def test_one_trainer_that_pushed_or_had_a_finite_loss_is_enough() -> None:
    assert kinds(left(), left(pushed=False)) == []
    assert kinds(left(pushed=False), left(pushed=False)) == ["no_push"]
    assert kinds(left(losses=(9, 0)), left(losses=(9, 1))) == []
    assert kinds(left(losses=(9, 0)), left(losses=(0, 0))) == ["loss_not_finite"]
    assert kinds(left(losses=(0, 0))) == []


def test_programs_that_do_not_report_are_not_doubted() -> None:
    assert kinds({"do": "exited"}, left(pushed=None)) == []
    assert kinds() == []
    assert kinds({**left(), "losses": []}, {**left(), "losses": [1, 2, 3]}) == []


def test_tables_with_values_that_are_not_finite_are_named_with_the_first_save() -> None:
    (doubt,) = find_doubts([left()], {"w": "pass-00003", "e": "pass-00001", "b": "pass-00003", "a": "pass-00004"})
    words = "the saved model has values that are not finite, since pass-00001: tables a, b, e and 1 more"
    assert doubt == {"kind": "model_not_finite", "message": words}


def test_a_run_that_fails_has_no_warnings() -> None:
    play = Play(nodes=1).reach("running")
    play.says(0, "saved", rank=0, tag="pass-00000", step=1, not_finite=["w"])
    play.exits("trainer", 0, code=1)
    play.says(0, "idle")
    assert play.noted("ended")[0].get("warnings") is None
