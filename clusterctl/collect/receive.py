"""Receives the files that a node sends. A node chooses their names, but not where they are stored.

What arrives in part stays in DIR/.parts/ until a later collection completes it; `common/file_transfer.py` explains how.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clusterctl.cluster import AgentCall
from clusterctl.common.events import RunWarning
from clusterctl.common.file_transfer import CHUNK_BYTES, Arrival, HashedBytes, KnownBytes, key_of
from clusterctl.common.schema import SchemaError, reader
from clusterctl.common.transfer_messages import (
    TOPS,
    CollectEnd,
    EmptyDirectory,
    FileAttributes,
    FileHash,
    FilesTotal,
    ResendOrder,
    SentFile,
)
from clusterctl.documents.jobs import CollectedFile
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

PARTS = ".parts"
MOST_FILES = 200_000  # per node
MOST_LEFT = 100  # per node, that are listed
LONGEST_NAME = 300  # characters of a name shown in an error
KEPT_FREE_BYTES = 256 << 20  # on the local file system

#: Called with a node, the bytes done, and the bytes in total.
Report = Callable[[Node, int, int], None]


@dataclass(frozen=True)
class Left:
    """A path that was left on a node: a "link", a "special" file, or one with a "name" that could harm a terminal.

    `more`: as many others of this node are not listed.
    """

    node: int
    path: str
    kind: str
    more: int = 0


@dataclass(frozen=True)
class Received:
    files: list[CollectedFile]
    left: list[Left]
    warnings: list[RunWarning]


class EarlierFiles:
    """The files of a node that earlier collections have brought into `target`, in part, or also `whole`."""

    def __init__(self, target: Path, node: Node, *, whole: bool) -> None:
        self._files: dict[str, list[HashedBytes]] = {}
        for path in _regular_files(target / PARTS / str(node.id)):
            self._add(path.name, path)
        home = target / f"node-{node.id}"
        for path in (path for top in TOPS if whole for path in _regular_files(home / top)):
            self._add(key_of(path.relative_to(home).as_posix()), path)

    def _add(self, key: str, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._files.setdefault(key, []).append(HashedBytes(path))

    def known(self) -> list[KnownBytes]:
        rows = [KnownBytes(key, one.bytes, one.sha256) for key, files in self._files.items() for one in files]
        return [row for row in rows if row.bytes][:MOST_FILES]

    def use(self, key: str, count: int) -> HashedBytes | None:
        """Return the file that has this many bytes, once."""
        found = next((one for one in self._files.get(key, ()) if one.bytes == count), None)
        if found is not None:
            self._files[key].remove(found)
        return found


def _regular_files(place: Path) -> Iterator[Path]:
    if place.is_symlink() or place.parent.is_symlink():
        return
    for directory, _, names in os.walk(place):
        for path in (Path(directory, name) for name in names):
            if path.is_file() and not path.is_symlink():
                yield path


class Receiver:
    """Receives everything that one node sends, see `receive`."""

    def __init__(self, call: AgentCall, target: Path, report: Report, earlier: EarlierFiles) -> None:
        self._call = call
        self._node = call.node
        self._target = target
        self._home = target / f"node-{call.node.id}"
        self._parts = target / PARTS / str(call.node.id)
        self._report = report
        self._earlier = earlier
        self._files: list[CollectedFile] = []
        self._damaged: list[str] = []
        self._is_again = False
        self._done = self._total = 0

    def receive(self) -> Received:
        """Receive everything until the node is done. Raises NodeError for what a node must not send.

        A file that arrives damaged is sent once more, in full. The `report` gets the bytes of files done so far and in
        total, as the node announces them.
        """
        make_directories(self._node, self._target, self._parts)
        count = 0
        while "done" not in (message := self._call.receive()):
            count += 1
            if count > MOST_FILES:
                hint = "have the job pack them, or copy them with scp"
                raise refuse(self._node, f"more than {MOST_FILES:,} files", hint)
            self._take(message)
        self._refuse_damaged()
        end: CollectEnd = read(self._node, CollectEnd, message["done"], "a malformed list of files")
        return Received(self._files, list(_left(self._node, end)), end.get("warnings") or [])

    def _take(self, message: Mapping[str, Any]) -> None:
        if "total" in message:
            about: FilesTotal = read(self._node, FilesTotal, message, "files of a malformed total")
            self._total = about["total"]
        elif "sent" in message:
            again: ResendOrder = {"again": self._damaged}
            self._call.send(again)
            self._damaged, self._is_again = [], True
        elif "dir" in message:
            empty: EmptyDirectory = read(self._node, EmptyDirectory, message, "a directory with a malformed name")
            make_directories(self._node, self._target, self._home / empty["dir"])
        else:
            self._take_file(read(self._node, SentFile, message, "a file of malformed attributes"))

    def _take_file(self, file: FileAttributes) -> None:
        name, size, start = file["file"], file["bytes"], file.get("start", 0)
        _need_room(self._node, size - start, self._target)
        path = self._home / name
        make_directories(self._node, self._target, path.parent)
        key = key_of(name)
        begun = self._earlier.use(key, start) if start else None
        part = self._parts / key
        if start and begun is None:
            raise refuse(self._node, f"a file from byte {start:,} on, which is not here")
        if begun is None:
            part.unlink(missing_ok=True)
        with Arrival(path, part, size, begun) as arrival:
            self._tell(start)
            arrival.append(self._data(size - start))
            expected: FileHash = read(self._node, FileHash, self._call.receive(), "a file with a malformed hash")
            dress = partial(_dress, mode=file.get("mode"), mtime_ns=file.get("mtime_ns"))
            if arrival.finish(expected["sha256"], dress, durable=path.exists()):
                self._files.append(CollectedFile(f"{self._home.name}/{name}", self._node.id, size, expected["sha256"]))
            else:
                self._damaged.append(name)
                self._tell(-size)
                if self._is_again:
                    self._refuse_damaged()

    def _data(self, left: int) -> Iterator[bytes]:
        while left:
            data = self._call.read(min(left, CHUNK_BYTES))
            yield data
            left -= len(data)
            self._tell(len(data))

    def _tell(self, count: int) -> None:
        self._done += count
        self._report(self._node, self._done, max(self._done, self._total))

    def _refuse_damaged(self) -> None:
        if self._damaged:
            name = self._damaged[0].rpartition("/")[2]
            message = f"{name} arrived damaged: its checksum differs"
            raise NodeError(message, node=self._node.label, hint="collect again")


def _dress(path: Path, mode: int | None, mtime_ns: int | None) -> None:
    if mode is not None and mtime_ns is not None:
        path.chmod(mode & 0o777 & (path.stat().st_mode | 0o111) | 0o600)  # as far as the umask allows
        os.utime(path, ns=(mtime_ns, mtime_ns))


def _left(node: Node, end: CollectEnd) -> Iterator[Left]:
    """Yield what the node reports as left there; copies come without such a list."""
    for path, kind in end.get("left", ())[:MOST_LEFT]:
        yield Left(node.id, path[:LONGEST_NAME], kind, end.get("more", 0))


def read(node: Node, kind: Any, message: object, name: str) -> Any:
    """Return a message of a node as it is declared. Raises NodeError that calls it `name`."""
    try:
        return reader(kind)(message)
    except SchemaError as exc:
        raise refuse(node, f"{name}: {exc}"[:LONGEST_NAME]) from exc


def refuse(node: Node, offer: str, hint: str = "check that the node has not been compromised") -> NodeError:
    """Return the error for something that no agent of ours sends."""
    return NodeError(f"refused {offer}", node=node.label, hint=hint)


def _need_room(node: Node, size: int, target: Path) -> None:
    """Raise NodeError for a file that would fill the disk of this machine."""
    free = shutil.disk_usage(target).free - KEPT_FREE_BYTES
    if size > free:
        hint = "choose a directory on another disk: collect -o DIR"
        raise refuse(node, f"a file of {size:,} bytes: {target} has room for {max(0, free):,}", hint)


def make_directories(node: Node, target: Path, directory: Path) -> None:
    """Create the directories below `target`; they must not be links to elsewhere."""
    for level in [*reversed(directory.relative_to(target).parents), directory.relative_to(target)]:
        path = target / level
        path.mkdir(exist_ok=True)
        if path.is_symlink() and path != target:
            raise NodeError(
                f"{path} is a symbolic link", node=node.label, hint="choose another directory: collect -o DIR"
            )
