"""Checkpoints that the user asks for: the cuts that the lead orders for them, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from clusterctl.agent.lead.actions import Action, AnswerSave, Policy, SendOrder
from clusterctl.common.manifest import checkpoint_tag
from unit.agent.plays import Play

ASYNC = Policy(together=False)


def orders(actions: Sequence[Action]) -> list[tuple[Any, ...]]:
    """Return the node, order and number of each order about cuts."""
    sent = [action for action in actions if isinstance(action, SendOrder)]
    return [(one.node, one.message["order"], one.message["cut"]) for one in sent if one.message["do"] == "cut"]


def answers(actions: Sequence[Action]) -> list[tuple[int, dict[str, Any]]]:
    return [(action.request, dict(action.answer)) for action in actions if isinstance(action, AnswerSave)]


def found(step: int) -> dict[str, Any]:
    return {"tag": checkpoint_tag(step), "step": step}


class Saves(Play):
    """A run of two pservers on two nodes that trains. Each call returns the answers that it causes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nodes=2, **options)
        self.reach("running")

    def wants(self, number: int) -> list[tuple[Any, ...]]:
        return orders(self.says(0, "save_wanted", request=number))

    def announces(self, number: int, step: int) -> list[tuple[int, dict[str, Any]]]:
        return answers(self._cut(0, "announced", cut=number, step=step))

    def _cut(self, rank: int, phase: str, **facts: Any) -> list[Action]:
        return self.says(rank, "cut", role="pserver", rank=rank, phase=phase, **facts)

    def writes(self, step: int, *, states: Sequence[int] = ()) -> list[tuple[int, dict[str, Any]]]:
        """Both pservers write their pieces of a checkpoint."""
        about = {"role": "pserver", "attempt": 1, "tag": checkpoint_tag(step), "step": step, "checkpoint": True}
        facts = {"states": list(states)} if states else {}
        return [one for rank in (0, 1) for one in answers(self.says(rank, "saved", rank=rank, **about, **facts))]

    def completes(self, step: int) -> list[tuple[int, dict[str, Any]]]:
        """The manifest is in place."""
        return answers(self.says(0, "kept", tag=checkpoint_tag(step), step=step, steps=[]))

    def cuts(self, number: int, step: int) -> list[tuple[int, dict[str, Any]]]:
        """Both pservers hold and make a cut, outside sync."""
        done: list[Action] = []
        for rank in (0, 1):
            done += self._cut(rank, "held", cut=number, counts=[step, 0], step=step, passes=0)
        for rank in (0, 1):
            done += self._cut(rank, "made", cut=number, table_sums=[7])
        return answers(done)


def test_in_sync_the_cut_is_announced_and_the_answer_waits_for_its_checkpoint() -> None:
    saves = Saves()
    assert saves.wants(1) == [(0, "announce", 1), (1, "announce", 1)]
    assert saves.announces(1, 12) == []
    assert saves.completes(10) == [], "a checkpoint from before"
    assert saves.writes(12) == [], "its manifest is not in place"
    assert saves.completes(12) == [(1, found(12))]
    assert saves.completes(20) == [], "it is answered once"


def test_a_checkpoint_that_is_complete_at_the_announced_step_is_the_answer() -> None:
    saves = Saves()
    saves.completes(12)
    saves.wants(1)
    assert saves.announces(1, 12) == [(1, found(12))]


def test_all_who_asked_get_the_same_checkpoint() -> None:
    saves = Saves()
    saves.wants(1)
    saves.wants(2)
    assert saves.announces(1, 12) == saves.announces(2, 12) == []
    assert sorted(saves.completes(14)) == [(1, found(14)), (2, found(14))]


@pytest.mark.parametrize(("phase", "again"), [("gathering", True), ("pservers", True), ("finishing", False)])
def test_outside_the_training_there_is_an_answer_at_once(phase: str, again: bool) -> None:
    play = Play(nodes=2).reach(phase)
    actions = play.says(0, "save_wanted", request=3)
    ((number, answer),) = answers(actions)
    assert (number, answer["again"], orders(actions)) == (3, again, [])


def test_a_roll_back_voids_what_was_being_saved() -> None:
    saves = Saves(policy=Policy(restarts={"pserver": 1}))
    saves.wants(1)
    saves.announces(1, 12)
    saves.exits("pserver", 1, code=1)
    ((number, answer),) = answers(saves.pass_time(0.5, alive=(0, 1)))
    assert (number, answer["again"]) == (1, True)
    assert saves.completes(12) == []


def test_a_checkpoint_that_lacks_a_state_is_no_answer_even_if_it_is_asked_for_again() -> None:
    saves = Saves()
    saves.wants(1)
    saves.announces(1, 12)
    assert saves.writes(12, states=[1]) == []
    ((number, answer),) = answers(saves.exits("trainer", 1))
    assert (number, answer["again"]) == (1, True)
    assert "lacks the state of a trainer" in answer["why"]
    saves.wants(2)
    ((number, answer),) = saves.announces(2, 12)
    assert (number, answer["again"]) == (2, True)


def test_outside_sync_a_cut_that_has_begun_before_does_not_count() -> None:
    saves = Saves(policy=ASYNC)
    saves.wants(1)
    saves.cuts(1, 9)
    assert saves.wants(2) == []
    assert saves.writes(9) == []
    assert saves.noted("cut_dropped") == []
    assert saves.completes(9) == [(1, found(9))]
    assert saves.cuts(2, 11) == []
    saves.writes(11)
    assert saves.completes(11) == [(2, found(11))]


def test_outside_sync_the_last_checkpoint_is_the_answer_if_nothing_is_new() -> None:
    saves = Saves(policy=ASYNC)
    saves.wants(1)
    saves.cuts(1, 9)
    saves.writes(9)
    saves.completes(9)
    saves.wants(2)
    assert saves.cuts(2, 9) == [(2, found(9))]


def test_outside_sync_there_is_nothing_to_save_before_the_first_push() -> None:
    saves = Saves(policy=ASYNC)
    saves.wants(1)
    ((number, answer),) = saves.cuts(1, 0)
    assert (number, answer["again"]) == (1, True)
    assert "nothing to save" in answer["why"]


def test_outside_sync_a_dropped_cut_is_answered_with_its_reason() -> None:
    saves = Saves(policy=ASYNC)
    saves.wants(1)
    saves.wants(2)
    dropped = answers(saves._cut(0, "failed", cut=1, waits_for=[1]))
    assert [(number, answer["again"]) for number, answer in dropped] == [(1, True), (2, True)]
    assert "a push of trainer1 did not reach all pservers" in dropped[0][1]["why"]


def test_outside_sync_the_end_of_the_training_drops_the_cut_and_keeps_what_is_copied() -> None:
    held, made = Saves(policy=ASYNC), Saves(policy=ASYNC)
    for saves in (held, made):
        saves.wants(1)
    made.cuts(1, 9)
    for saves in (held, made):
        saves.exits("trainer", 0)
    ((_, answer),) = answers(held.exits("trainer", 1))
    assert (answer["again"], "over" in answer["why"]) == (False, True)
    assert answers(made.exits("trainer", 1)) == []
    made.writes(9)
    assert made.completes(9) == [(1, found(9))]
