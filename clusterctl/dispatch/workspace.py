"""The contents of a workspace: every file with its hash, and the paths that are not sent."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clusterctl.common.paths import RESERVED
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry, content_of, leads_outside, order, shortened
from clusterctl.dispatch import digest_cache as caches
from clusterctl.dispatch.hashing import hash_files
from clusterctl.dispatch.ignore import IGNORE_FILE, RESERVED_NAME, Ignored, Rules, default_rules
from clusterctl.dispatch.unkept import UnpreservedProperties
from clusterctl.errors import ConfigError, RefusedError

__all__ = ["Ignored", "Workspace", "scan"]


@dataclass(frozen=True)
class Workspace:
    """A scanned workspace. In `entries` every directory precedes its contents; `ignored` paths are not sent.

    `warnings` name files that have properties which a dispatch does not keep.
    """

    directory: Path
    entries: tuple[Entry, ...]
    ignored: tuple[Ignored, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def files(self) -> int:
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @cached_property
    def tree(self) -> list[Entry]:
        """The entries in the order that nodes use."""
        return sorted(self.entries, key=lambda entry: order(entry.path))

    @cached_property
    def content(self) -> str:
        """A name for the whole contents, independent of the order of the entries."""
        return content_of(self.tree)


def check_exists(directory: Path) -> None:
    """Raise ConfigError if there is no such directory."""
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"the workspace {directory} {problem}", hint="clusterctl init creates one")


def scan(
    directory: Path,
    *,
    rehash: bool = False,
    cache: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Workspace:
    """Read a workspace, and hash the files that changed since their digests were stored in the `cache` directory.

    With `rehash`, hash all files. `report` gets the bytes hashed so far and in total, from any thread. Raises
    ConfigError if `directory` is not a workspace or cannot be read, RefusedError for an entry that cannot be sent or a
    file that changes while it is read.
    """
    check_exists(directory)
    cache_file = caches.cache_path(cache, directory) if cache else None
    known = caches.load(cache_file) if cache_file and not rehash else {}
    walk = _Walk(os.fspath(directory), known)
    walk.run()
    fresh = walk.hash_pending(report)
    if cache_file and (fresh or rehash or len(walk.rows) != len(known)):
        caches.save(cache_file, walk.rows)
    return Workspace(directory, tuple(walk.entries), tuple(walk.ignored), walk.unkept.warnings())


class _Walk:
    """Collects entries. Files get their digests from `known`; `pending` holds the indexes of the others."""

    def __init__(self, top: str, known: caches.Rows) -> None:
        self.top = top
        self.known = known
        self.rows: caches.Rows = {}
        self.entries: list[Entry] = []
        self.ignored: list[Ignored] = []
        self.pending: list[int] = []
        self.unkept = UnpreservedProperties()

    def run(self) -> None:
        todo = [("", default_rules())]
        while todo:
            todo.extend(reversed(list(self._directory(*todo.pop()))))

    def _directory(self, below: str, rules: Rules) -> Iterator[tuple[str, Rules]]:
        """Add the contents of a directory, and yield its subdirectories."""
        directory = f"{self.top}/{below}" if below else self.top
        try:
            with os.scandir(directory) as scanned:
                items = sorted(scanned, key=lambda item: item.name)
            if any(item.name == IGNORE_FILE for item in items):
                rules = rules.within(below, _read_ignore_file(directory))
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                raise _too_long(below) from exc
            raise ConfigError(
                f"cannot read the workspace: {exc.strerror}: {exc.filename}",
                hint=f"make it readable, or list it in {IGNORE_FILE}",
            ) from exc
        prefix = f"{below}/" if below else ""
        for item in items:
            path = prefix + item.name
            try:
                is_directory = not self._is_ignored(path, item, rules) and self._add(path, item)
            except OSError as exc:
                if exc.errno == errno.ENAMETOOLONG:
                    raise _too_long(path) from exc
                raise
            if is_directory:
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
        """Add one entry. Return True if it is a directory."""
        status = item.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self._add_file(path, status)
            self.unkept.add(path, item.path, status)
        elif kind == stat.S_IFDIR:
            self.entries.append(Entry(path, DIRECTORY, status.st_mode & 0o777, status.st_mtime_ns))
        elif kind == stat.S_IFLNK:
            target = _link_target(path, item.path, self.top)
            self.entries.append(Entry(path, LINK, 0o777, status.st_mtime_ns, target=target))
        else:
            raise RefusedError(
                f"{path!r} in the workspace is not a file, a directory or a link",
                hint=f"remove it (it may be a socket or a pipe), or list it in {IGNORE_FILE}",
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

    def hash_pending(self, report: Callable[[int, int], None]) -> bool:
        """Hash the pending files. Return True if the cache has new rows to save."""
        files = [(self.entries[i].path, self.entries[i].size) for i in self.pending]
        added = False
        for i, hashed in zip(self.pending, hash_files(self.top, files, report), strict=True):
            path = self.entries[i].path
            self.entries[i] = Entry(path, FILE, hashed.mode, hashed.mtime_ns, hashed.size, hashed.digest)
            if hashed.row is not None:
                self.rows[path] = hashed.row
                added = True
        return added


def _read_ignore_file(directory: str) -> bytes:
    """Return the contents of the ignore file. A directory of that name is an ordinary directory, as in git."""
    try:
        return Path(directory, IGNORE_FILE).read_bytes()
    except IsADirectoryError:
        return b""


def _link_target(path: str, link: str, top: str) -> str:
    target = os.readlink(link)  # noqa: PTH115 - as a string, because Path would normalize it
    if leads_outside(path, target):
        raise _link_refused(path, link, target, os.path.realpath(top))
    return target


def _link_refused(path: str, link: str, target: str, top: str) -> RefusedError:
    """Return the error for a link. One that leads into the workspace can be made relative; `top` has no links."""
    ends = os.path.realpath(link)
    if os.path.commonpath((top, ends)) != top:
        return RefusedError(
            f"{path!r} in the workspace is a link to {target!r}, outside the workspace",
            hint=f"replace the link with a copy of its target, remove it, or list it in {IGNORE_FILE}",
        )
    if Path(target).is_absolute():
        problem = "an absolute path, which the nodes do not have"
    elif target.startswith("../" * (path.count("/") + 1)):
        problem = "a path through a directory outside the workspace, which the nodes do not have"
    else:
        problem = "a path with .. after a name, which could lead anywhere on the nodes"
    relative = os.path.relpath(ends, Path(top, path).parent)
    return RefusedError(
        f"{path!r} in the workspace is a link to {target!r}: {problem}",
        hint=f"make it a relative link: ln -sfn {shlex.quote(relative)} {shlex.quote(link)}",
    )


def _too_long(path: str) -> ConfigError:
    return ConfigError(
        f"a path in the workspace is too long: {shortened(path)!r}",
        hint=f"shorten it, or list a directory above it in {IGNORE_FILE}",
    )
