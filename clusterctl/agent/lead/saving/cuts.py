"""Cuts outside sync: when all pservers copy their tables with the same pushes of each trainer. Pure.

    idle -> held -> made -> written -> idle
      held, made -> idle: the cut is dropped, and the next one comes at its time

A pserver reports that a cut is due. All hold new pushes back ("hold") and report how many they have; the highest count
of each trainer is that of the cut, up to which all apply pushes, copy, and go on ("make"). When all have copied, they
write ("write"). No trainer is asked. The next cut begins when the files of this one are in place, so there is one set
of copies at most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder
from clusterctl.agent.lead.saving.messages import CutOrder, CutReport
from clusterctl.common.errors import first_of
from clusterctl.common.events import CutDroppedEvent
from clusterctl.common.manifest import checkpoint_tag, step_tag

CHECKPOINT, MODEL = 1, 2  # what a cut is for: either, or both added; see runtime.cuts
MOST_NAMED = 4
PURPOSES = {CHECKPOINT: "checkpoint", MODEL: "model"}


class CutCoordinator:
    """`nodes` are those that have pservers, of which there are `pservers`. `number` is that of the last cut."""

    def __init__(self, nodes: Collection[int], pservers: int) -> None:
        self.phase = "idle"
        self._nodes = sorted(nodes)
        self._pservers = pservers
        self.number = 0
        self._due = 0
        self._purpose = 0
        self._step = 0
        self._reports: dict[int, CutReport] = {}
        self._tags: set[tuple[bool, str]] = set()  # to be written
        self._saved_at = {CHECKPOINT: 0, MODEL: 0}

    def move(self, nodes: Collection[int]) -> None:
        """Adopt the nodes that have pservers from now on; a roll back follows."""
        self._nodes = sorted(nodes)

    @property
    def checkpoint_step(self) -> int:
        """The step of the newest cut that was made for a checkpoint, complete or not; 0 if there was none."""
        return self._saved_at[CHECKPOINT]

    def want(self, purpose: int) -> list[Action]:
        """Make a cut for a purpose: now, or as the next one."""
        self._due |= purpose & (CHECKPOINT | MODEL)
        return self._begin_if_due()

    def take(self, report: CutReport) -> list[Action]:
        """Handle what a pserver reports."""
        if report["phase"] == "due":
            return self.want(report.get("purpose", 0))
        if report.get("cut") != self.number or self.phase not in ("held", "made"):
            return []
        if report["phase"] == "failed":
            return self._drop(_reason(report.get("waits_for", ())), report.get("waits_for", ()))
        if report["phase"] != self.phase:
            return []
        self._reports[report["rank"]] = report
        if len(self._reports) < self._pservers:
            return []
        reports = [self._reports[rank] for rank in sorted(self._reports)]
        self._reports = {}
        return self._make(reports) if self.phase == "held" else self._write(reports)

    def written(self, tag: str, checkpoint: bool) -> list[Action]:
        """Handle a complete save: all pservers have written it."""
        self._tags.discard((checkpoint, tag))
        if self.phase == "written" and not self._tags:
            self.phase = "idle"
        return self._begin_if_due()

    def reset(self, step: int) -> None:
        """Forget the cut being made: some or all processes restart, from the checkpoint of `step`."""
        self.phase, self._due = "idle", 0
        self._tags.clear()
        self._saved_at = {purpose: min(at, step) for purpose, at in self._saved_at.items()}

    def finish(self) -> list[Action]:
        """Drop a cut that is not copied by all pservers, and begin no other: the trainers have left."""
        held, self._due = self.phase in ("held", "made"), 0
        if held:
            self.phase = "idle"
        return self._order("drop") if held else []

    def _begin_if_due(self) -> list[Action]:
        if self.phase != "idle" or not self._due:
            return []
        self.phase, self._purpose, self._due = "held", self._due, 0
        self.number += 1
        self._reports = {}
        return self._order("hold")

    def _make(self, reports: Sequence[CutReport]) -> list[Action]:
        if len({len(report["counts"]) for report in reports}) > 1:
            return self._drop("the pservers count other trainers", ())
        counts = [max(of_one) for of_one in zip(*(report["counts"] for report in reports))]
        self._step = max(report["step"] + sum(counts) - sum(report["counts"]) for report in reports)
        self._purpose = sum(one for one, at in self._saved_at.items() if self._purpose & one and self._step > at)
        if not self._purpose:
            return self._abandon()
        self.phase = "made"
        passes = max(report["passes"] for report in reports)
        return self._order("make", purpose=self._purpose, counts=counts, step=self._step, passes=passes)

    def _write(self, reports: Sequence[CutReport]) -> list[Action]:
        sums = [list(report["table_sums"]) for report in reports]
        if not any(map(any, sums)):
            return self._abandon()
        if any(own != sums[0] for own in sums):
            return self._drop("a table was being made", ())
        self.phase = "written"
        checkpoint = {(True, checkpoint_tag(self._step))} if self._purpose & CHECKPOINT else set()
        self._tags = checkpoint | ({(False, step_tag(self._step))} if self._purpose & MODEL else set())
        self._saved_at.update({one: self._step for one in self._saved_at if self._purpose & one})
        return self._order("write")

    def _drop(self, why: str, ranks: Sequence[int]) -> list[Action]:
        dropped = cut_dropped(self._purpose, why, ranks)
        self._due &= ~self._purpose
        return [dropped, *self._abandon()]

    def _abandon(self) -> list[Action]:
        """Let the pservers go on without a cut; there is nothing to save."""
        self.phase = "idle"
        return [*self._order("drop"), *self._begin_if_due()]

    def _order(self, order: str, **facts: Any) -> list[Action]:
        message: CutOrder = {"do": "cut", "order": order, "cut": self.number, **facts}  # type: ignore[typeddict-item]
        return [SendOrder(message, node) for node in self._nodes]


def cut_dropped(purpose: int, why: str, ranks: Sequence[int]) -> RecordEvent:
    """Record that there is no cut for a purpose, which trainers are the reason, and why."""
    saves = [name for one, name in PURPOSES.items() if purpose & one]
    event: CutDroppedEvent = {
        "event": "cut_dropped",
        "message": f"no {' and '.join(saves)} this time: {why}; the next one comes at its time",
        "trainers": list(ranks),
        "saves": saves,
    }
    return RecordEvent(event)


def names_of(ranks: Sequence[int]) -> str:
    """Return the names of trainers for a message: the first ones, and how many more there are."""
    return first_of([f"trainer{rank}" for rank in ranks], MOST_NAMED)


def _reason(ranks: Sequence[int]) -> str:
    if not ranks:
        return "a pserver did not answer in time"
    return f"a push of {names_of(ranks)} did not reach all pservers in 5 s"
