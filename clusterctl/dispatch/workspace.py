"""What a workspace holds: every file with its hash, and what stays at home."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clusterctl.common.paths import RESERVED
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry, content_of, leads_outside, order
from clusterctl.dispatch import digest_cache as caches
from clusterctl.dispatch.hashing import hash_files
from clusterctl.dispatch.ignore import IGNORE_FILE, RESERVED_NAME, Ignored, Rules, default_rules
from clusterctl.errors import ConfigError, RefusedError

__all__ = ["Ignored", "Workspace", "scan"]


@dataclass(frozen=True)
class Workspace:
    """`entries` in an order in which every directory stands before what is in it; `ignored` are left out."""

    directory: Path
    entries: tuple[Entry, ...]
    ignored: tuple[Ignored, ...]

    @cached_property
    def files(self) -> int:
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @cached_property
    def tree(self) -> list[Entry]:
        """The entries as nodes order them."""
        return sorted(self.entries, key=lambda entry: order(entry.path))

    @cached_property
    def content(self) -> str:
        """A name for everything that is in it, whatever the order of the entries."""
        return content_of(self.tree)


def scan(directory: Path, *, rehash: bool = False, cache: Path | None = None) -> Workspace:
    """Reads a workspace, and hashes the files that changed since their digests came into the `cache` directory.

    With `rehash` it hashes all of them. Raises ConfigError when it is no workspace or cannot be read, RefusedError for
    what cannot be sent, and for a file that changes while it is read.
    """
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"the workspace {directory} {what}", hint="clusterctl init makes one")
    place = caches.cache_path(cache, directory) if cache else None
    known = caches.load(place) if place and not rehash else {}
    walk = _Walk(os.fspath(directory), known)
    walk.run()
    fresh = walk.hash_pending()
    if place and (fresh or rehash or len(walk.rows) != len(known)):
        caches.save(place, walk.rows)
    return Workspace(directory, tuple(walk.entries), tuple(walk.ignored))


class _Walk:
    """Collects entries, those of files with digests where `known` has them; the others are `pending`."""

    def __init__(self, top: str, known: caches.Rows) -> None:
        self.top = top
        self.known = known
        self.rows: caches.Rows = {}
        self.entries: list[Entry] = []
        self.ignored: list[Ignored] = []
        self.pending: list[int] = []

    def run(self) -> None:
        todo = [("", default_rules())]
        while todo:
            todo.extend(reversed(list(self._directory(*todo.pop()))))

    def _directory(self, below: str, rules: Rules) -> Iterator[tuple[str, Rules]]:
        """Adds what is in a directory; gives the directories in it."""
        place = f"{self.top}/{below}" if below else self.top
        try:
            with os.scandir(place) as found:
                items = sorted(found, key=lambda item: item.name)
            if any(item.name == IGNORE_FILE for item in items):
                rules = rules.within(below, _read_ignore_file(place))
        except OSError as exc:
            raise ConfigError(
                f"cannot read the workspace: {exc.strerror}: {exc.filename}",
                hint=f"make it readable, or leave it out by a line in {IGNORE_FILE}",
            ) from exc
        prefix = f"{below}/" if below else ""
        for item in items:
            path = prefix + item.name
            if not self._is_ignored(path, item, rules) and self._add(path, item):
                yield path, rules

    def _is_ignored(self, path: str, item: os.DirEntry[str], rules: Rules) -> bool:
        is_directory = item.is_dir(follow_symlinks=False)
        if path in RESERVED:
            text, source, line = f"/{path}", RESERVED_NAME, 0
        elif rule := rules.excluding(path, item.name, is_directory):
            text, source, line = rule.text, rule.source, rule.line
        else:
            return False
        size = None if is_directory else item.stat(follow_symlinks=False).st_size
        self.ignored.append(Ignored(path, text, source, line, size))
        return True

    def _add(self, path: str, item: os.DirEntry[str]) -> bool:
        """Whether it is a directory."""
        status = item.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self._add_file(path, status)
        elif kind == stat.S_IFDIR:
            self.entries.append(Entry(path, DIRECTORY, status.st_mode & 0o777, status.st_mtime_ns))
        elif kind == stat.S_IFLNK:
            target = _link_target(path, item.path)
            self.entries.append(Entry(path, LINK, 0o777, status.st_mtime_ns, target=target))
        else:
            raise RefusedError(
                f"{path!r} in the workspace is neither a file, a directory nor a link",
                hint=f"remove it (a socket, a pipe?), or leave it out by a line in {IGNORE_FILE}",
            )
        return kind == stat.S_IFDIR

    def _add_file(self, path: str, status: os.stat_result) -> None:
        row = self.known.get(path)
        digest = ""
        if row is not None and row.startswith(caches.stamp(status)):
            self.rows[path] = row
            digest = row[caches.STAMP.size :].hex()
        else:
            self.pending.append(len(self.entries))
        self.entries.append(Entry(path, FILE, status.st_mode & 0o777, status.st_mtime_ns, status.st_size, digest))

    def hash_pending(self) -> bool:
        """Whether the cache has something new to keep."""
        files = [(self.entries[i].path, self.entries[i].size) for i in self.pending]
        kept = False
        for i, found in zip(self.pending, hash_files(self.top, files), strict=True):
            path = self.entries[i].path
            self.entries[i] = Entry(path, FILE, found.mode, found.mtime_ns, found.size, found.digest)
            if found.row is not None:
                self.rows[path] = found.row
                kept = True
        return kept


def _read_ignore_file(directory: str) -> bytes:
    """Its rules; a directory of that name is just a directory, as for git."""
    try:
        return Path(directory, IGNORE_FILE).read_bytes()
    except IsADirectoryError:
        return b""


def _link_target(path: str, place: str) -> str:
    target = os.readlink(place)  # noqa: PTH115 - as a string: Path would tidy it up
    if leads_outside(path, target):
        raise RefusedError(
            f"{path!r} in the workspace is a link to {target!r}, outside of it",
            hint=f"replace the link by what it points to, remove it, or leave it out by a line in {IGNORE_FILE}",
        )
    return target
