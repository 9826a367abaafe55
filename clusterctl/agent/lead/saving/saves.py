"""The lead's part in models and checkpoints: what is complete, what stays, and what is copied. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from clusterctl.agent.lead.actions import Action, WriteManifest
from clusterctl.agent.lead.messages import ExitReport, RecoveryPoint, Report
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CheckpointTracker, ModelRetention
from clusterctl.agent.lead.saving.copies import CopyPolicy, CopyTracker
from clusterctl.agent.lead.saving.cuts import CutCoordinator
from clusterctl.agent.lead.saving.messages import CutReport
from clusterctl.agent.lead.saving.requests import TRAINING, SaveRequests
from clusterctl.common.errors import first_of
from clusterctl.common.events import RunWarning

SAVE_REPORTS = ("saved", "kept", "logged", "written", "copied", "cut", "save_wanted")


class SaveTracker:
    """`pservers` are the nodes of the pservers, each of which writes a piece of a save. With `together` the run is in
    sync.
    """

    def __init__(
        self,
        pservers: Sequence[int],
        lead: int,
        retention: CheckpointRetention | None,
        models: ModelRetention | None,
        copies: CopyPolicy | None,
        *,
        together: bool,
    ) -> None:
        self.copies = CopyTracker(copies or CopyPolicy({}), lead)
        kept = retention or CheckpointRetention(3)
        self.checkpoints = CheckpointTracker(kept, models or ModelRetention(None), self.copies)
        self.cuts = CutCoordinator(set(pservers), len(pservers))
        self.requests = SaveRequests(set(pservers), self.cuts, self.checkpoints, together=together)
        self._pservers = len(pservers)
        self._writers = set(pservers)

    def handle(self, node: int, report: Report, now: float, phase: str) -> list[Action]:
        """Handle a report about saves in a phase of the run."""
        if report["do"] == "save_wanted":
            return self.requests.answered(self.requests.take(report["request"], phase))
        return self.requests.answered(self._handle(node, report, now, phase))

    def _handle(self, node: int, report: Report, now: float, phase: str) -> list[Action]:
        if report["do"] == "cut":
            return self._handle_cut(report) if phase in TRAINING and report["role"] == "pserver" else []
        if report["do"] == "saved":
            return self._settled(self.checkpoints.take(report, self._pservers))
        if report["do"] == "kept":
            return self.checkpoints.keep(report)
        if report["do"] == "written":
            return [*self.copies.offer(report, now), *self.checkpoints.release()]
        if report["do"] == "copied":
            return [*self.copies.take(node, report, now), *self.checkpoints.release()]
        if report["do"] == "logged":
            self.checkpoints.log(report)
        return []

    def _handle_cut(self, report: CutReport) -> list[Action]:
        if report["phase"] != "announced":
            return self.cuts.take(report)
        self.requests.announced(report)
        return []

    def leave(self, ranks: Collection[int]) -> list[Action]:
        """Handle the end of trainers, see `CheckpointTracker.leave`."""
        return self.requests.answered(self._settled(self.checkpoints.leave(ranks, self._pservers)))

    def doubts(self, trainers: Collection[ExitReport]) -> list[RunWarning]:
        """Return the warnings about a run that succeeds, given how its trainers exited, and about its last model."""
        return [*find_doubts(trainers, self.checkpoints.not_finite), *self.copies.doubts(self._writers)]

    def finish(self) -> list[Action]:
        """Handle the end of the training, see `CutCoordinator.finish`."""
        self.requests.finish()
        return self.requests.answered(self.cuts.finish())

    def tick(self, now: float) -> list[Action]:
        """Handle the passing of time, see `CopyTracker.tick`."""
        return self.requests.answered(self.copies.tick(now))

    def move(self, pservers: Collection[int]) -> None:
        """Adopt the nodes that have pservers from now on."""
        self._writers = set(pservers)
        self.cuts.move(self._writers)
        self.requests.move(self._writers)

    def come_back(self, key: Key) -> None:
        """Expect states of a trainer that had ended, and is started again."""
        if key[0] == "trainer":
            self.checkpoints.come_back(key[1])

    def _settled(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, WriteManifest):
                self.copies.expect()
        settled, self.checkpoints.settled = self.checkpoints.settled, []
        return [*actions, *(after for checkpoint, tag in settled for after in self.cuts.written(tag, checkpoint))]

    def go_back(self, *, forget_logs: bool) -> RecoveryPoint:
        """Roll back, see `CheckpointTracker.go_back`."""
        newest = self.checkpoints.go_back(forget_logs=forget_logs)
        self.cuts.reset(newest["step"])
        self.requests.go_back()
        return newest


MOST_TABLES = 3  # that are named


def find_doubts(trainers: Collection[ExitReport], not_finite: Mapping[str, str]) -> list[RunWarning]:
    """Return the warnings about a run, given how its trainers exited.

    `not_finite` are the tables of which a value was saved that is not finite, each with the first tag of such a save.
    Trainers that do not report their pushes and losses use other programs than our runtime.
    """
    found: list[RunWarning] = []
    pushed = [message.get("pushed") for message in trainers]
    if pushed and not any(word is None or word for word in pushed):
        found.append({"kind": "no_push", "message": "no trainer ever pushed: the model is what it was at the start"})
    losses = [message.get("losses", ()) for message in trainers]
    if sum(sum(pair[:1]) for pair in losses) and not sum(sum(pair[1:]) for pair in losses):
        found.append({"kind": "loss_not_finite", "message": "every loss of the last pass was not finite"})
    if not_finite:
        tables = sorted(not_finite)
        names = f"{'table' if len(tables) == 1 else 'tables'} {first_of(tables, MOST_TABLES)}"
        first = min(not_finite.values(), key=lambda tag: (len(tag), tag))
        message = f"the saved model has values that are not finite, since {first}: {names}"
        found.append({"kind": "model_not_finite", "message": message})
    return found
