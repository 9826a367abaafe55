"""Where the pieces of saved models and checkpoints are on a node, and copies of other nodes' pieces."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from clusterctl.agent.node.checkpoint_files import is_merged_by_us, is_older
from clusterctl.agent.node.outputs import copied_models
from clusterctl.common.manifest import MERGED_NAME, all_files, is_checkpoint_tag, read_manifest
from clusterctl.common.paths import JobPaths, RunPaths, saved_places
from clusterctl.transfer.protocol import PieceFile


def find_piece(root: Path, piece: PieceFile) -> Iterator[Path]:
    """Yield the places where a piece may be: those of originals first. Other files may have its name."""
    job = JobPaths(root / piece.job)
    if not job.is_own():
        return
    for directory in saved_places(job, piece.run, piece.tag):
        path = directory / piece.file
        if path.is_file() and not path.is_symlink():
            yield path


def is_named(root: Path, piece: PieceFile) -> bool:
    """Return True if a manifest of this node names a piece with this size and checksum."""
    job = JobPaths(root / piece.job)
    for directory in saved_places(job, piece.run, piece.tag) if job.is_own() else ():
        with contextlib.suppress(OSError, ValueError, KeyError):
            for file in all_files(read_manifest(directory) or {"files": []}):
                if (file["file"], file["bytes"], file["sha256"]) == (piece.file, piece.bytes, piece.sha256):
                    return True
    return False


def all_runs(job: JobPaths) -> list[RunPaths]:
    """Return the runs of a job on this node, newest first."""
    names = [path.name for path in job.runs.iterdir() if path.name.isdigit()] if job.runs.is_dir() else []
    return [job.run(name) for name in sorted(names, key=int, reverse=True)]


def remove_checkpoint_copies(run: RunPaths, stay: Collection[str], newest: str, *, alone: bool) -> None:
    """Remove copies of the checkpoints that are removed: see `checkpoint_files.remove_older`. Raises OSError."""
    for other in all_runs(run.job) if alone else (run,):
        if int(other.run) > int(run.run):
            continue
        for directory in _copied(other):
            tag = directory.name
            gone = other.run != run.run or (tag not in stay and is_older(tag, newest))
            if is_checkpoint_tag(tag) and gone:
                shutil.rmtree(directory)


def remove_model_copies(run: RunPaths, tags: Collection[str]) -> None:
    """Remove copies of models in output/, which are of `run` or of those that it has resumed. Raises OSError."""
    known = [model.directory for model in copied_models(run)]
    for directory in {*known, *_copied(run)}:
        if directory.name in tags:
            shutil.rmtree(directory)


def remove_unfinished(run: RunPaths) -> None:
    """Remove what a piece server was writing when it ended."""
    shutil.rmtree(run.merging, ignore_errors=True)
    for directory in _copied(run):
        for path in directory.glob(".*-part"):
            path.unlink(missing_ok=True)


def _copied(run: RunPaths) -> list[Path]:
    paths = sorted(run.copies.iterdir()) if run.copies.is_dir() else []
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def remove_merged(job: JobPaths, but: str | None = None) -> None:
    """Remove the merged models in output/, except that of the tag `but`. Raises OSError."""
    for path in sorted(job.output.glob(f"*/{MERGED_NAME}")) if job.output.is_dir() else ():
        if path.parent.name != but and is_merged_by_us(path):
            path.unlink()
