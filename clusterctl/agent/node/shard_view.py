"""The working directory of a trainer that runs away from its shards: the job directory with other shards.

It has the copies of the trainer's shards at the paths of the originals, none of the node's own, and all else. Its
directories are its own, and so are copies of the smaller files, so that a program that looks beside itself stays in it.
Larger files and shards are symbolic links, as are `output/` and `log/`: hard links would change what tells that a file
is as dispatched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from clusterctl.agent.node.content import read_manifest
from clusterctl.common.paths import META, JobPaths, RunPaths, views_dir
from clusterctl.common.seal import COPIED_SHARDS
from clusterctl.common.shards import copied, matcher
from clusterctl.common.tree import FILE

LINKED = ("output", "log")
COPIED_BYTES = 64 << 20  # of all files together, the smallest first


def trainers_with_copies(job: JobPaths) -> list[int]:
    """Return the trainers of other nodes whose shards this node has copies of."""
    try:
        return sorted(int(path.name) for path in (job.dir / COPIED_SHARDS).iterdir() if path.name.isdecimal())
    except FileNotFoundError:
        return []


def make_view(run: RunPaths, rank: int, patterns: Collection[str]) -> Path:
    """Return the working directory of a trainer in a run; make it unless it is there.

    `patterns`: of all shards. Raises OSError if it cannot be made, or lacks a shard.
    """
    view = views_dir(run.job.dir.parent) / run.job.dir.name / run.run / f"trainer{rank}"
    if view.is_dir():
        return view
    new = view.with_name(f"{view.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(0o700, parents=True)
    hidden, copies = _shards(run.job, rank, patterns)
    small: list[tuple[int, Path, Path]] = []
    for item, place in _items(run.job.dir, new, hidden):
        if item.is_symlink():
            place.symlink_to(Path(item.path).readlink())  # it leads to the same path in the view
        elif item.is_dir():
            place.symlink_to(item.path)
        elif item.is_file():
            small.append((item.stat().st_size, Path(item.path), place))
    _fill(small)
    for path, copy in copies.items():
        (new / path).parent.mkdir(parents=True, exist_ok=True)
        (new / path).symlink_to(run.job.dir / copy)
    new.rename(view)
    return view


def _shards(job: JobPaths, rank: int, patterns: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Return the shards of the node itself, and the copies of the trainer's, by the paths of the originals."""
    rows = read_manifest(job.dir)
    if rows is None:
        raise FileNotFoundError(f"the list of files of {job.dir.name} is missing or damaged")
    tests = [matcher(pattern) for pattern in patterns]
    hidden: set[str] = set()
    copies: dict[str, str] = {}
    for path in (row.entry.path for row in rows if row.entry.kind == FILE):
        copy = copied(path)
        if copy is None and any(matches(path) for matches in tests):
            hidden.add(path)
        elif copy is not None and copy[0] == rank:
            copies[copy[1]] = path
    for path, copy_path in copies.items():
        if not (job.dir / copy_path).is_file():
            raise FileNotFoundError(f"the copy of the shard {path} of trainer {rank} is missing: {job.dir / copy_path}")
    return hidden, copies


def _items(home: Path, view: Path, hidden: Collection[str]) -> Iterator[tuple[os.DirEntry[str], Path]]:
    """Yield what the view is to have of the job directory, with its place; make the directories."""
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(home / below) as items:
            for item in items:
                path = f"{below}/{item.name}" if below else item.name
                if path == META or path in hidden:
                    continue
                if item.is_dir(follow_symlinks=False) and path not in LINKED:
                    (view / path).mkdir(0o700)
                    todo.append(path)
                else:
                    yield item, view / path


def _fill(files: list[tuple[int, Path, Path]]) -> None:
    """Copy the smaller ones of these files, and link the others."""
    total = 0
    for size, path, place in sorted(files):
        total += size
        if total <= COPIED_BYTES:
            shutil.copy2(path, place)
        else:
            place.symlink_to(path)
