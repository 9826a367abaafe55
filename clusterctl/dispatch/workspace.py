"""What a workspace holds, and which node gets which part of it."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.agent.paths import RESERVED
from clusterctl.agent.tree import COPY_BYTES, DIRECTORY, FILE, LINK, Entry, leads_outside
from clusterctl.errors import ConfigError, RefusedError
from clusterctl.inventory import Node

IGNORED_NAMES = (".git", "__pycache__", ".venv")
SHARD_SUFFIX = re.compile(r".*?(\d+)(?:\.\w+)?$")


@dataclass(frozen=True)
class Workspace:
    """`entries` in an order in which every directory stands before what is in it; `ignored` are left out."""

    directory: Path
    entries: tuple[Entry, ...]
    ignored: tuple[str, ...]

    @property
    def files(self) -> int:
        return sum(entry.kind == FILE for entry in self.entries)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    def content(self) -> str:
        """A name for everything that is in it."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr(tuple(entry)).encode())
        return digest.hexdigest()[:16]


def scan(directory: Path) -> Workspace:
    """Reads and hashes a workspace. Raises ConfigError when it is none, RefusedError for what cannot be sent."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"the workspace {directory} {what}", hint="clusterctl init makes one")
    ignored: list[str] = []
    try:
        entries = tuple(_walk(directory, "", ignored))
    except OSError as exc:
        raise ConfigError(f"cannot read the workspace: {exc.strerror}: {exc.filename}") from exc
    return Workspace(directory, entries, tuple(ignored))


def _walk(top: Path, below: str, ignored: list[str]) -> Iterator[Entry]:
    with os.scandir(top / below) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        path = posixpath.join(below, item.name)
        if item.name in IGNORED_NAMES or (not below and item.name in RESERVED):
            ignored.append(path)
            continue
        entry = _entry(Path(item.path), path, item.stat(follow_symlinks=False))
        yield entry
        if entry.kind == DIRECTORY:
            yield from _walk(top, path, ignored)


def _entry(place: Path, path: str, status: os.stat_result) -> Entry:
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(place)  # noqa: PTH115 - as a string: Path would tidy it up
        if leads_outside(path, target):
            raise RefusedError(
                f"{path!r} in the workspace is a link to {target!r}, outside of it",
                hint="replace the link by what it points to, or remove it",
            )
        return Entry(path, LINK, 0o777, status.st_mtime_ns, target=target)
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, DIRECTORY, mode, status.st_mtime_ns)
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(
            f"{path!r} in the workspace is neither a file, a directory nor a link", hint="remove it (a socket, a pipe?)"
        )
    return Entry(path, FILE, mode, status.st_mtime_ns, status.st_size, _hash(place))


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while data := f.read(COPY_BYTES):
            digest.update(data)
    return digest.hexdigest()


def for_node(entries: Sequence[Entry], shards: Sequence[str], node: Node, trainers: int) -> list[Entry]:
    """What a node gets: everything but the data shards of other nodes' trainers.

    A file that matches one of the `shards` patterns belongs to trainer (number in its name) mod `trainers`, as in
    the old launcher's tutorial. Raises ConfigError for one without a number.
    """
    return [
        entry
        for entry in entries
        if entry.kind != FILE
        or not any(_matches(entry.path, pattern) for pattern in shards)
        or shard_number(entry.path) % trainers in node.trainer_ranks
    ]


def _matches(path: str, pattern: str) -> bool:
    """A pattern without a slash is about the file's name, wherever it is."""
    return fnmatch.fnmatchcase(path if "/" in pattern else posixpath.basename(path), pattern)


def shard_number(path: str) -> int:
    """The number at the end of a shard's name: 3 for `train.txt-00003` and for `part-3.csv`."""
    match = SHARD_SUFFIX.match(posixpath.basename(path))
    if match is None:
        raise ConfigError(
            f"{path!r} matches SHARDS, but its name does not end in a number",
            hint="name shards like train.txt-00000, or make the pattern in SHARDS narrower",
        )
    return int(match[1])
