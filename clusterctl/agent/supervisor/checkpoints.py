"""Saved models and checkpoints on a node: manifests on the lead's node, and the removal of old ones."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.agent.lead.actions import DropManifests, ManifestAction, WriteManifest
from clusterctl.agent.lead.message_schema import check
from clusterctl.agent.lead.saving.messages import DropModelsOrder, KeepOrder, LoggedReport, WrittenReport
from clusterctl.agent.node.checkpoint_files import (
    drop_manifests,
    drop_model_manifests,
    is_merged_by_us,
    remove_models,
    remove_older,
)
from clusterctl.agent.node.outputs import complete_models
from clusterctl.agent.node.pieces import remove_checkpoint_copies, remove_model_copies
from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.agent.supervisor.exits import system_error
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.files import digest_of
from clusterctl.common.manifest import MERGED_NAME, build_manifest, write_manifest


class CheckpointKeeper:
    """The saved models and checkpoints of one run on this node."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._run = context.run
        self._spec = context.spec

    def change_manifests(self, action: ManifestAction) -> None:
        """Write the manifest of a complete save, or remove those of saves that are no longer kept."""
        if isinstance(action, WriteManifest):
            self._write_manifest(action)
            return
        with self._warn_on_error():
            if isinstance(action, DropManifests):
                drop_manifests(self._run, action.stay, action.newest)
            else:
                drop_model_manifests(self._run.job, action.tags)

    def _write_manifest(self, whole: WriteManifest) -> None:
        """Write the manifest of a complete save; report a checkpoint to the lead."""
        tag, first = whole.tag, whole.receipts[0]
        try:
            self._write(whole)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:  # of a receipt that a node forged
            is_full = getattr(exc, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
            path = getattr(exc, "filename", None)
            facts = system_error(exc)
            if path:
                facts["path"] = str(path)
            hint = "; free space there" if is_full else ""
            self._context.fail(f"cannot write the manifest of {tag}: {exc}{hint}", None, facts)
            return
        if whole.checkpoint:
            step = first.get("step") or 0
            self._context.send({"do": "kept", "tag": tag, "step": step, "steps": first.get("steps", [])})

    def _write(self, whole: WriteManifest) -> None:
        tag = whole.tag
        states = {receipt["rank"]: receipt for receipt in whole.states}
        manifest = build_manifest(self._spec.job, self._spec.run, whole.receipts, states)
        if Path(tag).name != tag or tag.startswith("."):
            raise ValueError("not a name for a directory")
        directory = (self._run.checkpoints if whole.checkpoint else self._run.job.output) / tag
        directory.mkdir(0o700, parents=True, exist_ok=True)
        if manifest is not None:
            if not whole.checkpoint and is_merged_by_us(directory / MERGED_NAME):
                (directory / MERGED_NAME).unlink()  # of the pieces that these have replaced
            path = write_manifest(directory, {**manifest, **(self._invocation() if whole.checkpoint else {})})
            about: WrittenReport = {
                "do": "written",
                "tag": tag,
                "checkpoint": whole.checkpoint,
                "bytes": path.stat().st_size,
                "sha256": digest_of(path),
            }
            self._context.send(about)

    def _invocation(self) -> dict[str, Any]:
        """Return what a resume repeats: the program's arguments, the settings of `--set`, and the name of the run."""
        settings = {"settings": dict(self._spec.settings)} if self._spec.settings else {}
        name = {"name": self._spec.name} if self._spec.name else {}
        return {"arguments": list(self._spec.arguments), **settings, **name}

    def carry_out(self, order: KeepOrder | DropModelsOrder) -> None:
        """Remove what is no longer kept."""
        if order["do"] == "keep":
            self._keep(order)
        else:
            self._drop_models(order["tags"])

    def _keep(self, order: KeepOrder) -> None:
        saving = self._spec.saving
        served = saving.resume.tag if saving.resume and saving.sources else None
        with self._warn_on_error():
            remove_older(self._run, order["tags"], order["newest"], alone=order["alone"], served=served)
            remove_checkpoint_copies(self._run, order["tags"], order["newest"], alone=order["alone"])

    def complete_models(self) -> dict[str, int]:
        """Return the models that this run starts with and may remove, with their steps: those of the run it resumes."""
        return complete_models(self._run.job)

    def _drop_models(self, tags: Sequence[str]) -> None:
        with self._warn_on_error("model"):
            remove_models(self._run.job, tags)
            remove_model_copies(self._run, tags)

    @contextlib.contextmanager
    def _warn_on_error(self, of: str = "checkpoint") -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            message = f"cannot remove an older {of}: {exc}"
            self._context.record({"event": "log", "level": "warning", "message": message})

    def report(self, child: Child, event: Mapping[str, Any]) -> None:
        """Report to the lead what a pserver says about a cut, or that a trainer has lost its state.

        Raises ValueError if it is malformed.
        """
        about = {name: value for name, value in event.items() if name != "event"}
        report = {**about, "do": event["event"], **process_of(child)}
        self._context.send(check(report, self._spec.node, [(child.role, child.rank)]))

    def log(self, child: Child, event: Mapping[str, Any]) -> None:
        """Report the metric of KEEP_BEST to the lead if a trainer logged it. Raises ValueError if it is malformed."""
        best = self._spec.saving.keep_best
        if best and best.name in event["values"] and child.role == "trainer":
            report: LoggedReport = {
                "do": "logged",
                "rank": child.rank,
                "value": float(event["values"][best.name]),
                "step": int(event.get("pushes", event["step"])),  # the steps of checkpoints are those of the pservers
                "weight": float(event.get("weight", 1)),
            }
            self._context.send(report)
