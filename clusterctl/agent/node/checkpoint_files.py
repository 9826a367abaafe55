"""Checkpoints on a node: what is here and whether it is whole, bringing pieces, carrying them on, and removing them.

They are in `runs/RUN/checkpoints/TAG/`; `manifest.json`, on the node that led, says that all pieces of all nodes are
there. It goes first when a checkpoint is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from clusterctl.common.manifest import NAME, sync_directory, write_manifest
from clusterctl.common.paths import JobPaths, RunPaths

PIECES = "pserver-*.safetensors"
MAX_HEADER_BYTES = 256 << 20


def checkpoint_dirs(job: JobPaths) -> Iterator[tuple[RunPaths, Path]]:
    names = sorted(path.name for path in job.runs.iterdir() if path.name.isdigit()) if job.runs.is_dir() else []
    for run in map(job.run, names):
        for place in sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else ():
            if place.is_dir() and not place.name.startswith("."):
                yield run, place


def checkpoint_dir(job: JobPaths, request: dict[str, Any]) -> Path:
    return job.run(Path(request["run"]).name).checkpoints / Path(request["tag"]).name


def carry_on(run: RunPaths, resume: dict[str, Any]) -> None:
    """Gives a new run the `files` of the checkpoint `tag` of an older `run`, which may then be removed."""
    source = checkpoint_dir(run.job, resume)
    target = run.checkpoints / source.name
    target.mkdir(0o700, parents=True)
    for name in (Path(file).name for file in resume["files"]):
        try:
            os.link(source / name, target / name)
        except OSError:  # a file system without links
            shutil.copy2(source / name, target / name)
    sync_directory(target)
    write_manifest(target, resume["manifest"])


def set_aside_later(job: JobPaths, manifest: dict[str, Any], aside: Path) -> None:
    """Models in output/ that were saved after a checkpoint, which the run will make again, move to `aside`."""
    step = sum(manifest["steps"]) if "steps" in manifest else manifest["step"]
    for place in sorted(job.output.iterdir()) if job.output.is_dir() else ():
        if place.is_dir() and any(step_of(piece) > step for piece in place.glob(PIECES)):
            aside.mkdir(0o700, exist_ok=True)
            place.rename(aside / place.name)


def step_of(piece: Path) -> int:
    """The step that the header of a piece names; -1 when it cannot be read."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError), piece.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return int(json.loads(file.read(min(length, MAX_HEADER_BYTES)))["__metadata__"]["step"])
    return -1


def drop_manifests(run: RunPaths, stay: Collection[str], newest: str) -> None:
    """What is to be removed is no checkpoint from now on."""
    for place in _older(run, stay, newest):
        (place / NAME).unlink(missing_ok=True)


def remove_older(run: RunPaths, stay: Collection[str], newest: str, *, alone: bool) -> None:
    """Removes checkpoints before `newest`, complete or not, but those that `stay`; with `alone` of older runs all."""
    drop_manifests(run, stay, newest)
    gone = list(_older(run, stay, newest))
    if alone:
        gone += [place for other, place in checkpoint_dirs(run.job) if int(other.run) < int(run.run)]
    for place in gone:
        (place / NAME).unlink(missing_ok=True)
        shutil.rmtree(place)


def _older(run: RunPaths, stay: Collection[str], newest: str) -> Iterator[Path]:
    """Tags end with the step, zeros before it: the longer or else the later in the alphabet is the newer."""
    for other, place in checkpoint_dirs(run.job):
        if other.run == run.run and place.name not in stay and (len(place.name), place.name) < (len(newest), newest):
            yield place
