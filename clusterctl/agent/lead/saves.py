"""The lead's part in models and checkpoints: what is complete, what stays, and what is copied. Pure."""

from __future__ import annotations

from clusterctl.agent.lead.actions import Action, WriteManifest
from clusterctl.agent.lead.checkpoints import CheckpointRetention, CheckpointTracker, ModelRetention
from clusterctl.agent.lead.copies import CopyPolicy, CopyTracker
from clusterctl.agent.lead.messages import Report

SAVE_REPORTS = ("saved", "kept", "logged", "written", "copied")


class SaveTracker:
    """`pservers` is the number of pieces of a save."""

    def __init__(
        self,
        pservers: int,
        lead: int,
        retention: CheckpointRetention | None,
        models: ModelRetention | None,
        copies: CopyPolicy | None,
    ) -> None:
        self.checkpoints = CheckpointTracker(retention or CheckpointRetention(3), models or ModelRetention(None))
        self.copies = CopyTracker(copies or CopyPolicy({}), lead)
        self._pservers = pservers

    def handle(self, node: int, report: Report, now: float) -> list[Action]:
        """Handle a report about saves."""
        if report["do"] == "saved":
            actions = self.checkpoints.take(report, self._pservers)
            for _ in (action for action in actions if isinstance(action, WriteManifest)):
                self.copies.expect()
            return actions
        if report["do"] == "kept":
            return self.checkpoints.keep(report)
        if report["do"] == "written":
            return self.copies.offer(report, now)
        if report["do"] == "copied":
            return self.copies.take(node, report, now)
        if report["do"] == "logged":
            self.checkpoints.log(report)
        return []
