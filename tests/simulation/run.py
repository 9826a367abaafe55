"""What must hold in a simulated run, whatever happens to its machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.agent.lead.actions import WriteManifest
from clusterctl.common.run_spec import RunSpec
from simulation.program import MODEL, STEPS, Pserver

if TYPE_CHECKING:
    from simulation.machine import Machine
    from simulation.world import World


class SimulatedRun:
    """One run, as it is known to all of the simulation. `spec` is that of its lead."""

    def __init__(self, world: World, spec: RunSpec) -> None:
        self.world = world
        self.spec = spec
        self.result = ""  # the last model
        self.ends: list[Mapping[str, Any]] = []
        self.copies: dict[tuple[str, str], set[int]] = {}  # who has copied a piece, as the lead knows
        self.copying: dict[tuple[int, str], list[tuple[str, str]]] = {}  # the pieces last copied, by node and tag
        self._kept: set[str] = set()  # the checkpoints that the lead knows to be complete, and
        self._copied: set[str] = set()  # to be copied
        if spec.saving.resume is not None and spec.saving.sources is not None:
            tag = spec.saving.resume.tag
            self._kept, self._copied = {tag}, {tag}
            self.copies = {(tag, piece.file): {*piece.nodes} for piece in spec.saving.sources.pieces}
        self._may_shrink = spec.failures.on_trainer_loss == "shrink"
        self._newest: dict[tuple[int, int], int] = {}  # by pserver and trainer: the newest attempt that has counted

    @property
    def lead_machine(self) -> Machine:
        return self.world.machines[self.spec.node]

    @property
    def lead(self) -> Any:
        """The state machine of the lead; None if its supervisor is gone."""
        process = self.lead_machine.supervisor
        if process is None or process.supervisor is None or process.spec.run != self.spec.run:
            return None
        return process.supervisor.lead._lead

    @property
    def is_newest(self) -> bool:
        return self.spec.run == max(self.world.runs)

    def watch(self, lead: Any) -> None:
        """Note which copies the lead hears of. Those of a node that it has given up do not count."""
        handle, copies = lead.handle, lead._saves.copies

        def watched(node: int, message: Mapping[str, Any], now: float) -> Any:
            asked = ("copy", node) in copies._asked and message.get("tag") == copies._save["tag"]
            if message["do"] == "copied" and asked and "message" not in message:
                for name in self.copying.get((node, message["tag"]), ()):
                    self.copies.get(name, set()).add(node)
            return handle(node, message, now)

        lead.handle = watched

    def recorded(self, machine: Machine, event: Mapping[str, Any]) -> None:
        self.world.tell(machine, event)
        if event["event"] == "rolled_back":
            self._check_recovery(event["tag"] or "")
        elif event["event"] == "saved" and event.get("checkpoint"):
            self._kept.add(event["tag"])
        elif event["event"] == "copied" and event.get("checkpoint"):
            self._copied.add(event["tag"])
        elif event["event"] == "phase" and "no node has" in str(event.get("cause")):
            self._check_recovery("")
        elif event["event"] == "ended" and machine is self.lead_machine:
            self.ends.append(event)

    def applied(self, server: Pserver, attempts: Mapping[int, int]) -> str:
        """Return the name of a model after a step. What a process does whose place others have taken never counts."""
        content = repr((server.model, *attempts)).encode()
        name = hashlib.sha256(content).hexdigest()[:16]
        self.world.models[name] = (server.model, tuple(attempts.items()))
        if self._is_current(server):
            for rank, attempt in attempts.items():
                assert attempt >= self._newest.get((server.key[1], rank), 0), f"an old attempt of trainer {rank} counts"
                self._newest[server.key[1], rank] = attempt
        return name

    def _is_current(self, server: Pserver) -> bool:
        lead = self.lead
        return lead is not None and lead._table.attempts[server.key] == server.attempt

    def wrote(self, action: WriteManifest) -> None:
        """All pieces of a complete save are of one model, unless a trainer was given up between two pushes.

        Once another run has begun, this one saves nothing any more.
        """
        assert self.is_newest, f"run {self.spec.run} saves {action.tag} after a later one has begun"
        models = {receipt["sha256"] for receipt in action.receipts}
        assert len(models) == 1 or self._may_shrink, f"{action.tag} is of several models: {models}"
        assert len({receipt["file"] for receipt in action.receipts}) == self.spec.training.pservers
        self.copies.update({(action.tag, receipt["file"]): set() for receipt in action.receipts})
        self._copied.discard(action.tag)
        if action.tag == MODEL:
            self.result = action.receipts[0]["sha256"].lstrip("0").rjust(16, "0")

    def _check_recovery(self, tag: str) -> None:
        """While a copy of each piece is on a live disk, the newest complete checkpoint is found."""
        detector = self.lead._detector
        stored = {node: self.world.machines[node].disk.runs for node in detector.here - detector.lost}
        here = {node: runs[self.spec.run].pieces for node, runs in stored.items() if self.spec.run in runs}

        def is_there(file: Mapping[str, Any]) -> bool:
            name = manifest["tag"], file["file"]
            holders = {file["node"], *(self.copies[name] if name[0] in self._copied else ())}
            return any(name in here.get(node, ()) for node in holders)

        newest = ""
        for manifest in self.lead_machine.disk.runs[self.spec.run].manifests.values():
            if manifest["tag"] in self._kept and all(map(is_there, manifest["files"])):
                newest = max(newest, manifest["tag"])
        assert tag >= newest, f"{tag or 'none'} was chosen, and {newest} is whole"
        self._kept = {one for one in self._kept if one <= tag}  # what came after it never happened

    def check_end(self) -> None:
        assert len(self.ends) <= 1
        if self.ends and self.ends[0]["state"] == "succeeded":
            model, steps = self.result, 0
            while model:
                before, attempts = self.world.models[model]
                assert len(attempts) == self.spec.training.trainers or self._may_shrink, attempts
                model, steps = before, steps + 1
            assert steps == STEPS
