"""The lead's cuts outside sync: when pservers hold, copy, write and drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder
from clusterctl.agent.lead.saving.cuts import CHECKPOINT, MODEL, CutCoordinator
from unit.agent.plays import Play

BOTH = CHECKPOINT | MODEL


class Cuts:
    """Two pservers on the nodes 3 and 5. Each call returns the orders that it causes; `events` are recorded."""

    def __init__(self) -> None:
        self.coordinator = CutCoordinator([5, 3], 2)
        self.number = 0
        self.events: list[dict[str, Any]] = []

    def _orders(self, actions: Sequence[Action]) -> list[dict[str, Any]]:
        """Return the orders, each of which goes to both nodes."""
        self.events += [dict(action.event) for action in actions if isinstance(action, RecordEvent)]
        orders = [action for action in actions if isinstance(action, SendOrder)]
        assert [order.node for order in orders] == [3, 5] * (len(orders) // 2)
        assert [order.message for order in orders[::2]] == [order.message for order in orders[1::2]]
        sent = [dict(order.message) for order in orders[::2]]
        self.number = max([self.number, *(order["cut"] for order in sent)])
        return sent

    def says(self, rank: int, phase: str, **facts: Any) -> list[dict[str, Any]]:
        report: Any = {"do": "cut", "role": "pserver", "rank": rank, "phase": phase, **facts}
        return self._orders(self.coordinator.take(report))

    def due(self, purpose: int, rank: int = 0) -> list[str]:
        return names(self.says(rank, "due", purpose=purpose))

    def held(self, rank: int, counts: Sequence[int], step: int | None = None) -> list[dict[str, Any]]:
        step = sum(counts) if step is None else step
        return self.says(rank, "held", cut=self.number, counts=list(counts), step=step, passes=1)

    def made(self, rank: int, *sums: int) -> list[str]:
        return names(self.says(rank, "made", cut=self.number, table_sums=list(sums)))

    def failed(self, *ranks: int) -> list[str]:
        return names(self.says(0, "failed", cut=self.number, waits_for=list(ranks)))

    def written(self, tag: str, *, checkpoint: bool = True) -> list[str]:
        return names(self._orders(self.coordinator.written(tag, checkpoint)))

    def finish(self) -> list[str]:
        return names(self._orders(self.coordinator.finish()))

    def reach(self, phase: str, purpose: int = CHECKPOINT, counts: Sequence[int] = (2, 3)) -> None:
        """Bring a cut to a phase."""
        assert self.due(purpose) == ["hold"]
        if phase == "held":
            return
        self.held(0, counts)
        assert names(self.held(1, counts)) == ["make"]
        if phase == "written":
            self.made(0, 1)
            assert self.made(1, 1) == ["write"]
        assert self.coordinator.phase == phase


def names(orders: Sequence[dict[str, Any]]) -> list[str]:
    return [order["order"] for order in orders]


def test_a_cut_is_held_made_and_written_by_all_pservers_and_then_the_next_one_may_begin() -> None:
    cuts = Cuts()
    assert cuts.due(CHECKPOINT) == ["hold"]
    assert cuts.held(0, [2, 3]) == []
    assert cuts.held(0, [2, 3]) == [], "the same pserver again"
    (make,) = cuts.held(1, [2, 3])
    assert make == {
        "do": "cut",
        "order": "make",
        "cut": 1,
        "purpose": CHECKPOINT,
        "counts": [2, 3],
        "step": 5,
        "passes": 1,
    }
    assert cuts.made(1, 7, 8) == []
    assert cuts.made(0, 7, 8) == ["write"]
    assert cuts.due(CHECKPOINT) == [], "the copies of this one are still in memory"
    assert cuts.written("step-000000005") == ["hold"]
    assert (cuts.number, cuts.events) == (2, [])


@pytest.mark.parametrize(
    ("steps", "step"),
    [
        ((105, 104), 109),  # both resumed at step 100, with other numbers of pushes
        ((105, 4), 109),  # the second one lost pushes, and counts fewer steps
    ],
)
def test_the_step_of_a_cut_is_the_highest_that_a_pserver_reaches_with_its_pushes(
    steps: tuple[int, int], step: int
) -> None:
    cuts = Cuts()
    cuts.due(MODEL)
    cuts.held(0, [4, 1], steps[0])
    (make,) = cuts.held(1, [3, 5], steps[1] + 4)
    assert make["step"] == step


def test_what_falls_due_while_a_cut_is_made_is_remembered_for_the_next_one() -> None:
    cuts = Cuts()
    cuts.reach("written", BOTH)
    assert cuts.due(MODEL) == []
    assert cuts.due(MODEL, 1) == []
    assert cuts.written("step-000000005") == [], "the model is not complete yet"
    assert cuts.written("at-step-000000005", checkpoint=False) == ["hold"]
    cuts.held(0, [9, 9])
    (make,) = cuts.held(1, [9, 9])
    assert (make["cut"], make["purpose"]) == (2, MODEL)
    assert cuts.due(8) == [], "no purpose that we know"


@pytest.mark.parametrize("phase", ["held", "made"])
def test_a_dropped_cut_names_its_trainers_and_forgets_what_fell_due_meanwhile(phase: str) -> None:
    cuts = Cuts()
    cuts.reach(phase, BOTH)
    cuts.due(CHECKPOINT)
    assert cuts.failed(1) == ["drop"]
    (event,) = cuts.events
    assert event == {
        "event": "cut_dropped",
        "message": "no checkpoint and model this time: a push of trainer1 did not reach all pservers in 5 s; "
        "the next one comes at its time",
        "trainers": [1],
        "saves": ["checkpoint", "model"],
    }
    assert cuts.coordinator.phase == "idle"
    assert cuts.failed(1) == [], "the second pserver gives up, too"
    assert len(cuts.events) == 1
    assert cuts.due(CHECKPOINT) == ["hold"], "the next one comes at its time"


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ((), "a pserver did not answer in time"),
        ((0, 2), "a push of trainer0, trainer2 did not reach all pservers in 5 s"),
        (range(7), "a push of trainer0, trainer1, trainer2, trainer3 and 3 more did not reach all pservers in 5 s"),
    ],
)
def test_the_message_of_a_dropped_cut_names_at_most_four_trainers(ranks: Sequence[int], why: str) -> None:
    cuts = Cuts()
    cuts.reach("made", MODEL)
    cuts.failed(*ranks)
    assert cuts.events[0]["message"] == f"no model this time: {why}; the next one comes at its time"
    assert cuts.events[0]["trainers"] == list(ranks)


def test_a_cut_without_pushes_since_the_last_one_is_dropped_quietly() -> None:
    cuts = Cuts()
    cuts.reach("written", CHECKPOINT)
    cuts.written("step-000000005")
    cuts.due(CHECKPOINT)
    cuts.held(0, [2, 3])
    assert names(cuts.held(1, [2, 3])) == ["drop"]
    cuts.due(BOTH)
    cuts.held(0, [2, 3])
    (make,) = cuts.held(1, [2, 3])
    assert make["purpose"] == MODEL, "there is no model of these pushes yet"
    assert cuts.events == []


def test_a_cut_without_tables_is_dropped_quietly() -> None:
    cuts = Cuts()
    cuts.reach("made")
    cuts.made(0, 0, 0)
    assert cuts.made(1, 0, 0) == ["drop"]
    assert (cuts.coordinator.phase, cuts.events) == ("idle", [])
    cuts.reach("written")


def test_a_cut_between_which_a_table_was_made_is_dropped_with_an_event() -> None:
    cuts = Cuts()
    cuts.reach("made")
    cuts.made(0, 7, 0)
    assert cuts.made(1, 7, 9) == ["drop"]
    (event,) = cuts.events
    assert event["message"] == "no checkpoint this time: a table was being made; the next one comes at its time"
    assert event["trainers"] == []


def test_late_reports_of_an_earlier_cut_are_ignored() -> None:
    cuts = Cuts()
    cuts.reach("held")
    cuts.failed(0)
    cuts.reach("held")
    assert cuts.number == 2
    for phase in ("held", "made", "failed"):
        late = {"counts": [9, 9], "step": 18, "table_sums": [1], "waits_for": [1]}
        assert cuts.says(1, phase, cut=1, **late) == []
    assert cuts.made(1, 1) == [], "a report of a later phase"
    cuts.held(0, [1, 1])
    (make,) = cuts.held(1, [1, 1])
    assert make["counts"] == [1, 1]
    assert len(cuts.events) == 1


@pytest.mark.parametrize("phase", ["held", "made", "written"])
def test_a_reset_forgets_the_cut_and_saves_again_what_was_rolled_back(phase: str) -> None:
    cuts = Cuts()
    cuts.reach(phase)
    cuts.due(MODEL)
    cuts.coordinator.reset(3)
    assert cuts.held(0, [9, 9]) == cuts.held(1, [9, 9]) == []
    assert cuts.made(0, 1) == cuts.made(1, 1) == []
    assert cuts.written("step-000000005") == [], "what fell due before is forgotten"
    cuts.reach("written", CHECKPOINT)


@pytest.mark.parametrize(("phase", "orders"), [("held", ["drop"]), ("made", ["drop"]), ("written", [])])
def test_at_the_end_a_cut_that_is_not_copied_is_dropped_and_no_other_begins(phase: str, orders: list[str]) -> None:
    cuts = Cuts()
    cuts.reach(phase)
    cuts.due(MODEL)
    assert cuts.finish() == orders
    assert cuts.written("step-000000005") == []
    assert cuts.events == []


def test_a_lead_cuts_only_while_it_trains_and_only_for_pservers() -> None:
    play = Play(nodes=1)
    due = {"role": "pserver", "rank": 0, "phase": "due", "purpose": CHECKPOINT}
    assert play.says(0, "cut", **due) == []
    play.reach("running")
    assert play.says(0, "cut", **{**due, "role": "trainer"}) == []
    (order,) = play.says(0, "cut", **due)
    assert isinstance(order, SendOrder)
    assert order.message == {"do": "cut", "order": "hold", "cut": 1}
