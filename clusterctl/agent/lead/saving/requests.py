"""Checkpoints that the user asks for: the cuts for them, and when they are complete. Pure.

A request is answered once a checkpoint is complete whose cut was made after the request. In sync the first pserver
announces a cut and reports its step; in the other modes the coordinator makes its next cut for it. If no push was made
since the last checkpoint, that one is the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clusterctl.agent.lead.actions import Action, AnswerSave, RecordEvent, SendOrder
from clusterctl.agent.lead.saving.checkpoints import CheckpointTracker
from clusterctl.agent.lead.saving.cuts import CHECKPOINT, PURPOSES, CutCoordinator
from clusterctl.agent.lead.saving.messages import CutOrder, CutReport
from clusterctl.common.answers import SaveOutcome
from clusterctl.common.events import CutDroppedEvent
from clusterctl.common.manifest import checkpoint_tag

TRAINING = ("trainers", "running")  # the phases in which cuts are made
BEFORE = ("gathering", "pservers")
NOT_YET = "the processes of the run are starting"
OVER = "the training is over"
ROLLED_BACK = "the run went back to an earlier checkpoint"
NOTHING = "there is nothing to save: no trainer has pushed yet"


class _Request:
    """`cut` is the number of the first cut that counts, outside sync. `step` is that of its cut once it is known."""

    def __init__(self, cut: int) -> None:  # `dataclasses` imports `inspect`, which takes a lead 5 ms
        self.cut = cut
        self.step: int | None = None


class SaveRequests:
    """`nodes` have the pservers. With `together` the run is in sync."""

    def __init__(
        self, nodes: Collection[int], cuts: CutCoordinator, checkpoints: CheckpointTracker, *, together: bool
    ) -> None:
        self._nodes = sorted(nodes)
        self._cuts = cuts
        self._checkpoints = checkpoints
        self._together = together
        self._open: dict[int, _Request] = {}
        self._answers: list[AnswerSave] = []

    def move(self, nodes: Collection[int]) -> None:
        """Adopt the nodes that have pservers from now on."""
        self._nodes = sorted(nodes)

    def take(self, number: int, phase: str) -> list[Action]:
        """Handle a request in a phase of the run."""
        self._open[number] = _Request(self._cuts.number + 1)
        if phase not in TRAINING:
            self._refuse([number], NOT_YET if phase in BEFORE else OVER, again=phase in BEFORE)
            return []
        if not self._together:
            return self._cuts.want(CHECKPOINT)
        order: CutOrder = {"do": "cut", "order": "announce", "cut": number}
        return [SendOrder(order, node) for node in self._nodes]

    def announced(self, report: CutReport) -> None:
        """Handle the step of the cut that was announced for a request."""
        request = self._open.get(report["cut"])
        if request is not None:
            request.step = report["step"]

    def go_back(self) -> None:
        """Handle a roll back: what was being saved is void."""
        self._refuse(list(self._open), ROLLED_BACK, again=True)

    def finish(self) -> None:
        """Handle the end of the training. What pservers have copied is still written."""
        self._refuse(self._undecided(), OVER, again=False)

    def answered(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions of the lead, and the answers that are possible now."""
        for action in actions:
            if isinstance(action, RecordEvent) and action.event["event"] == "cut_dropped":
                self._drop(action.event)
        if not self._together:
            self._decide()
        for number, request in list(self._open.items()):
            if request.step is not None:
                self._look(number, request.step)
        answers, self._answers = self._answers, []
        return [*actions, *answers]

    def _drop(self, event: CutDroppedEvent) -> None:
        if PURPOSES[CHECKPOINT] in event["saves"]:
            self._refuse(self._undecided(), event["message"], again=True)

    def _undecided(self) -> list[int]:
        return [number for number, request in self._open.items() if request.step is None]

    def _decide(self) -> None:
        """Find the step of the cuts that are made by now, outside sync. One without new pushes was not made."""
        for number in self._undecided():
            request = self._open[number]
            if self._cuts.number < request.cut or self._cuts.phase in ("held", "made"):
                continue
            request.step = self._cuts.checkpoint_step
            if request.step == 0:
                self._refuse([number], NOTHING, again=True)

    def _look(self, number: int, step: int) -> None:
        """Answer a request if its checkpoint, or a newer one, is complete, or if it never will be."""
        newest = self._checkpoints.newest
        if newest is not None and newest.step >= step:
            self._answer(number, {"tag": newest.tag, "step": newest.step})
        elif self._checkpoints.void == checkpoint_tag(step):
            self._refuse([number], f"checkpoint {checkpoint_tag(step)} lacks the state of a trainer", again=True)

    def _refuse(self, numbers: Collection[int], why: str, *, again: bool) -> None:
        for number in numbers:
            self._answer(number, {"why": why, "again": again})

    def _answer(self, number: int, answer: SaveOutcome) -> None:
        self._open.pop(number, None)
        self._answers.append(AnswerSave(number, answer))
