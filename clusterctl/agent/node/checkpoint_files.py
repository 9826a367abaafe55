"""The checkpoint files of a node: list them, carry them over to a new run, remove them.

They are in `runs/RUN/checkpoints/TAG/`. `manifest.json`, on the lead's node, means that all pieces of all nodes are
complete. It is removed before the pieces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.common.errors import AgentError
from clusterctl.common.files import digest_of, sync_directory
from clusterctl.common.manifest import (
    MERGED_FORMAT,
    MERGED_MARK,
    MERGED_NAME,
    NAME,
    all_files,
    is_scheduled_tag,
    write_manifest,
)
from clusterctl.common.paths import JobPaths, RunPaths, saved_places
from clusterctl.common.safe_json import parse

PIECES = "pserver-*.safetensors"
STATES = "trainer-*.safetensors"
HALF_WRITTEN = (f"*/.{PIECES}-*", f"*/.{STATES}-*")  # as `runtime/checkpoint/safetensors.py` names them
MAX_HEADER_BYTES = 256 << 20


def run_names(job: JobPaths) -> list[str]:
    return sorted(path.name for path in job.runs.iterdir() if path.name.isdigit()) if job.runs.is_dir() else []


def checkpoint_dirs(job: JobPaths) -> Iterator[tuple[RunPaths, Path]]:
    for run in map(job.run, run_names(job)):
        for directory in sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else ():
            if directory.is_dir() and not directory.name.startswith("."):
                yield run, directory


def carry_on(run: RunPaths, resume: dict[str, Any], job: JobPaths) -> None:
    """Give a new run the `files` of the checkpoint `tag` of an older `run` of `job`. The older one may then be removed.

    These are all of its files that this node has: other nodes read them from the new run's directory.
    """
    target = run.checkpoints / Path(resume["tag"]).name
    places = list(saved_places(job, Path(resume["run"]).name, target.name))
    target.mkdir(0o700, parents=True)
    for file in all_files(resume["manifest"]):
        if file["file"] in resume["files"]:
            _take_over(_sound_copy(places, file), target / file["file"])
    sync_directory(target)
    write_manifest(target, resume["manifest"])


def _sound_copy(places: Sequence[Path], file: Mapping[str, Any]) -> Path:
    """Return the file of this node that was found to be sound; if there are several, they are compared again."""
    found = [path for path in (Path(place, file["file"]) for place in places) if path.is_file()]
    if not found:
        raise AgentError(f"{file['file']} has disappeared since it was verified", hint="run the command again")
    return next((path for path in found[:-1] if defect(path, file) is None), found[-1])


def _take_over(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def defect(path: Path, file: Mapping[str, Any], on_read: Callable[[], None] = lambda: None) -> str | None:
    """Return the defect of a piece with the `bytes` and `sha256` of `file`, or None. Raises FileNotFoundError."""
    try:
        size = path.stat().st_size
        if size != file["bytes"]:
            return f"has {size} of {file['bytes']} bytes"
        return None if digest_of(path, on_read) == file["sha256"] else "is damaged: its checksum differs"
    except FileNotFoundError:
        raise
    except OSError as exc:
        return f"cannot be read: {exc.strerror}"


def remove_half_written(run: RunPaths) -> None:
    """Remove the files of checkpoints and models that were being written when their writers were killed.

    The models are those of the newest run.
    """
    outputs = [run.job.output] if run.job.newest_run() in (None, run.run) else []
    for directory in (run.checkpoints, *outputs):
        paths: list[Path] = []
        with contextlib.suppress(OSError):
            paths += (path for names in HALF_WRITTEN for path in directory.glob(names))
        for path in paths:
            with contextlib.suppress(OSError):
                if not path.parent.is_symlink():
                    path.unlink()
                    path.parent.rmdir()  # if that was all


def set_aside_later(job: JobPaths, manifest: dict[str, Any], aside: Path) -> None:
    """Move models in output/ that were saved after a checkpoint to `aside`: the run will save them again."""
    step = sum(manifest["steps"]) if "steps" in manifest else manifest["step"]
    for directory in sorted(job.output.iterdir()) if job.output.is_dir() else ():
        if directory.is_dir() and any(step_of(piece) > step for piece in directory.glob(PIECES)):
            aside.mkdir(0o700, exist_ok=True)
            directory.rename(aside / directory.name)


def step_of(piece: Path) -> int:
    """Return the step in the header of a piece; -1 if it cannot be read."""
    with contextlib.suppress(KeyError, ValueError):
        return int(piece_header(piece)["step"])
    return -1


def piece_header(piece: Path) -> dict[str, str]:
    """Return the metadata in the header of a piece; nothing if it cannot be read."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError), piece.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return {**parse(file.read(min(length, MAX_HEADER_BYTES)))["__metadata__"]}
    return {}


def is_merged_by_us(path: Path) -> bool:
    """Return True for a model that we merged, and False for a file that the program has written."""
    header = piece_header(path) if path.is_file() and not path.is_symlink() else {}
    return header.get("format") == MERGED_FORMAT and MERGED_MARK in header


def drop_manifests(run: RunPaths, stay: Collection[str], newest: str) -> None:
    """Remove the manifests of the checkpoints that will be removed, so that they no longer count as checkpoints."""
    for directory in _older(run, stay, newest):
        (directory / NAME).unlink(missing_ok=True)


def remove_older(run: RunPaths, stay: Collection[str], newest: str, *, alone: bool, served: str | None = None) -> None:
    """Remove checkpoints older than `newest`, complete or not, except `stay`; with `alone` also all of older runs.

    Other nodes read the pieces of the checkpoint `served`: it only stops to count as one.
    """
    drop_manifests(run, stay, newest)
    gone = [directory for directory in _older(run, stay, newest) if directory.name != served]
    if alone:
        gone += [directory for other, directory in checkpoint_dirs(run.job) if int(other.run) < int(run.run)]
    for directory in gone:
        (directory / NAME).unlink(missing_ok=True)
        shutil.rmtree(directory)


def drop_model_manifests(job: JobPaths, tags: Collection[str]) -> None:
    """Remove the manifests of models, so that they no longer count as complete."""
    for directory in _model_directories(job, tags):
        (directory / NAME).unlink(missing_ok=True)


def remove_models(job: JobPaths, tags: Collection[str]) -> None:
    """Remove scheduled models, but no other file that the program has put into their directories."""
    drop_model_manifests(job, tags)
    for directory in _model_directories(job, tags):
        for piece in directory.glob(PIECES):
            piece.unlink(missing_ok=True)
        if is_merged_by_us(directory / MERGED_NAME):
            (directory / MERGED_NAME).unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()


def _model_directories(job: JobPaths, tags: Collection[str]) -> Iterator[Path]:
    for directory in (job.output / tag for tag in tags if is_scheduled_tag(tag)):
        if directory.is_dir() and not directory.is_symlink():
            yield directory


def _older(run: RunPaths, stay: Collection[str], newest: str) -> Iterator[Path]:
    """Yield the run's checkpoints before `newest`."""
    for other, directory in checkpoint_dirs(run.job):
        if other.run == run.run and directory.name not in stay and is_older(directory.name, newest):
            yield directory


def is_older(tag: str, newest: str) -> bool:
    """Compare tags of checkpoints. They end with the zero-padded step: compare lengths, then text."""
    return (len(tag), tag) < (len(newest), newest)
