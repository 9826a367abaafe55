"""The working directory of a trainer that runs away from its shards: the job directory with other shards.

It has the copies of the trainer's shards at the paths of the originals, none of the node's own, and all else: files as
hard links, directories without shards as symbolic links. What the trainer writes beside them stays in it.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from clusterctl.agent.node.content import read_manifest
from clusterctl.common.paths import META, JobPaths, RunPaths, views_dir
from clusterctl.common.seal import COPIED_SHARDS
from clusterctl.common.shards import copied, matcher
from clusterctl.common.tree import FILE


def trainers_with_copies(job: JobPaths) -> list[int]:
    """Return the trainers of other nodes whose shards this node has copies of."""
    with contextlib.suppress(OSError):
        return sorted(int(path.name) for path in (job.dir / COPIED_SHARDS).iterdir() if path.name.isdecimal())
    return []


def make_view(run: RunPaths, rank: int, patterns: Collection[str]) -> Path:
    """Return the working directory of a trainer in a run; make it unless it is there. Raises OSError.

    `patterns`: of all shards.
    """
    view = views_dir(run.job) / run.run / f"trainer{rank}"
    if view.is_dir():
        return view
    new = view.with_name(f"{view.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(0o700, parents=True)
    tests = [matcher(pattern) for pattern in patterns]
    hidden: set[str] = set()
    copies: dict[str, str] = {}
    for row in read_manifest(run.job.dir) or ():
        path, copy = row.entry.path, copied(row.entry.path) if row.entry.kind == FILE else None
        if copy and copy[0] == rank:
            copies[copy[1]] = path
        elif row.entry.kind == FILE and any(matches(path) for matches in tests):
            hidden.add(path)
    _fill(new, run.job.dir, hidden, copies)
    new.rename(view)
    return view


def _fill(view: Path, home: Path, hidden: Collection[str], copies: Mapping[str, str]) -> None:
    made = set(_above([*hidden, *copies]))
    for directory in sorted(made):
        (view / directory).mkdir(0o700, exist_ok=True)
        if not (home / directory).is_dir():
            continue
        with os.scandir(home / directory) as items:
            for item in items:
                path = posixpath.join(directory, item.name)
                if path != META and path not in hidden and path not in made:
                    _link(item, view / path)
    for path, copy in copies.items():
        _hard_link(home / copy, view / path)


def _above(paths: Iterable[str]) -> Iterator[str]:
    """Yield the directories above these paths, and the top."""
    yield ""
    for path in paths:
        while path := posixpath.dirname(path):
            yield path


def _link(item: os.DirEntry[str], place: Path) -> None:
    if item.is_symlink():
        place.symlink_to(Path(item.path).readlink())  # it leads to the same path in the view
    elif item.is_dir():
        place.symlink_to(item.path)
    elif item.is_file():
        _hard_link(Path(item.path), place)


def _hard_link(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except OSError:  # not on this file system
        place.symlink_to(path)
