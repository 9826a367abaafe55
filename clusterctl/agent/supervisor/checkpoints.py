"""What a supervisor does about saved models and checkpoints: manifests, where it leads, and their removal."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.lead.actions import DropManifests, WriteManifest
from clusterctl.agent.node.checkpoint_files import drop_manifests, remove_older
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.exits import system_error
from clusterctl.agent.supervisor.run_context import RunContext

Message = dict[str, Any]


class CheckpointKeeper:
    """The saved models and checkpoints of one run on this node."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._run = context.run
        self._spec = context.spec

    def write_manifest(self, whole: WriteManifest) -> None:
        """Writes the manifest of what all pservers have saved; of a checkpoint, tells the lead then."""
        tag, first = whole.tag, whole.receipts[0]
        try:
            self._write_manifest(whole)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:  # of a receipt that a node made up
            is_full = getattr(exc, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
            path = getattr(exc, "filename", None)
            about = {**system_error(exc), **({"path": str(path)} if path else {})}
            hint = "; free space there" if is_full else ""
            self._context.fail(f"cannot write the manifest of {tag}: {exc}{hint}", None, about)
            return
        if whole.checkpoint:
            self._context.send({"do": "kept", "tag": tag, "step": int(first["step"]), "steps": first.get("steps", [])})

    def _write_manifest(self, whole: WriteManifest) -> None:
        from clusterctl.common.manifest import build_manifest, write_manifest

        tag = whole.tag
        manifest = build_manifest(self._spec.job, self._spec.run, whole.receipts)
        if Path(tag).name != tag or tag.startswith("."):
            raise ValueError("not a name for a directory")
        directory = (self._run.checkpoints if whole.checkpoint else self._run.job.output) / tag
        directory.mkdir(0o700, parents=True, exist_ok=True)
        if manifest is not None:
            about = {"arguments": list(self._spec.arguments)} if whole.checkpoint else {}
            write_manifest(directory, {**manifest, **about})

    def drop_manifests(self, action: DropManifests) -> None:
        with self._trouble_is_a_warning():
            drop_manifests(self._run, action.stay, action.newest)

    def keep(self, order: Message) -> None:
        """Removes the checkpoints that the lead does without."""
        with self._trouble_is_a_warning():
            remove_older(self._run, order["tags"], order["newest"], alone=order["alone"])

    @contextlib.contextmanager
    def _trouble_is_a_warning(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            message = f"an older checkpoint cannot be removed: {exc}"
            self._context.record({"event": "log", "level": "warning", "message": message})

    def log(self, child: Child, said: Message) -> None:
        """Tells the lead what a trainer logged, if KEEP_BEST goes by it. Raises ValueError where it is malformed."""
        best = self._spec.saving.keep_best
        if best and best.name in said["values"] and child.role == "trainer":
            numbers = {"step": int(said["step"]), "weight": float(said.get("weight", 1))}
            value = float(said["values"][best.name])
            self._context.send({"do": "logged", "rank": child.rank, "value": value, **numbers})
