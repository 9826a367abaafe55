"""Find and verify the pieces of checkpoints and models, for `start --resume` and `start --load`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.node.checkpoint_files import PIECES, checkpoint_dirs, defect, run_names
from clusterctl.agent.node.jobs import find_job
from clusterctl.agent.node.outputs import models_in
from clusterctl.agent.peer import Peer
from clusterctl.common.manifest import read_manifest
from clusterctl.common.paths import JobPaths, saved_places
from clusterctl.common.requests import FindCheckpointsRequest, FindModelsRequest, VerifyCheckpointRequest


def find(root: Path, request: FindCheckpointsRequest, peer: Peer) -> dict[str, Any]:
    """Return every checkpoint of the job on this node: `run`, `tag`, `manifest` or None and a `reason`, `pieces`.

    With `copies` also those that are known from copies of other nodes' pieces; they have a manifest.
    """
    job = find_job(root, request["ref"])
    found = [_describe(run.run, directory) for run, directory in checkpoint_dirs(job)]
    found += (one for one in _copied(job, request.get("copies", False)) if one["manifest"].get("checkpoint"))
    return {"job": job.dir.name, "checkpoints": found}


def find_models(root: Path, request: FindModelsRequest, peer: Peer) -> dict[str, Any]:
    """Return every model of the job on this node in the form of `find`; `run` is the run that saved it."""
    job = find_job(root, request["ref"])
    places = [job.output, *(job.run(name).dir / "output" for name in run_names(job))]
    found = [_describe(model.run, model.directory) for place in places for model in models_in(place)]
    found += (one for one in _copied(job, request.get("copies", False)) if not one["manifest"].get("checkpoint"))
    return {"job": job.dir.name, "models": found}


def _copied(job: JobPaths, wanted: bool) -> Iterator[dict[str, Any]]:
    for run in run_names(job) if wanted else ():
        copies = job.run(run).copies
        for directory in sorted(copies.iterdir()) if copies.is_dir() else ():
            described = _describe(run, directory)
            if described["manifest"] is not None:
                yield described


def _describe(run: str, directory: Path) -> dict[str, Any]:
    reason = None
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError) as exc:
        manifest, reason = None, f"its manifest cannot be read: {exc}"
    pieces = sorted(path.name for path in directory.glob(PIECES))
    return {"run": run, "tag": directory.name, "manifest": manifest, "reason": reason, "pieces": pieces}


def verify(root: Path, request: VerifyCheckpointRequest, peer: Peer) -> dict[str, Any]:
    """Return the defect, or None, by name of each of a manifest's `files` that is on this node."""
    job = find_job(root, request["ref"])
    places = list(saved_places(job, request["run"], request["tag"]))
    pieces: dict[str, str | None] = {}
    for file in request["files"]:
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                pieces[file["file"]] = defect(place / file["file"], file, peer.heartbeat)
                if pieces[file["file"]] is None:
                    break
    return {"pieces": pieces}
