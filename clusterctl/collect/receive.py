"""Receives the files that a node sends. A node chooses their names, but not where they are stored."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cluster import AgentCall
from clusterctl.common.events import RunWarning
from clusterctl.common.schema import fits
from clusterctl.common.tree import ODD_CHARACTERS
from clusterctl.documents.jobs import CollectedFile
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

CHUNK_BYTES = 1 << 20
TOPS = ("log", "output")
MOST_FILES = 200_000  # per node
MOST_LEFT = 100  # per node, that are listed
KINDS = ("link", "special", "name")
MOST_LEVELS = 32
LONGEST_NAME = 300  # characters of a name shown in an error
KEPT_FREE_BYTES = 256 << 20  # on the local file system
MOST_BYTES = 1 << 62
LATEST_NS = 1 << 62  # as a time of change

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


def receive(call: AgentCall, target: Path, report: Report) -> Received:
    """Receive everything until the node is done. Raises NodeError for what a node must not send.

    `report` gets the bytes of files done so far and in total, as the node announces them.
    """
    home = target / f"node-{call.node.id}"
    files: list[CollectedFile] = []
    count = done = total = 0

    def on_piece(size: int) -> None:
        nonlocal done
        done += size
        report(call.node, done, max(done, total))

    while True:
        message = call.receive()
        if "done" in message:
            return Received(files, list(_left(call.node, message["done"])), _warnings(call.node, message["done"]))
        count += 1
        if count > MOST_FILES:
            raise refuse(call.node, f"more than {MOST_FILES:,} files", "have the job pack them, or copy them with scp")
        if "total" in message:
            total = _checked_total(call.node, message["total"])
            continue
        if "dir" in message:
            _make_directories(call.node, target, home / _checked_name(call.node, message["dir"]))
            continue
        name, size = _checked_name(call.node, message["file"]), _checked_size(call.node, message["bytes"], target)
        path = home / name
        _make_directories(call.node, target, path.parent)
        digest = _receive_file(call, path, size, _attributes(call.node, message), on_piece)
        files.append(CollectedFile(f"node-{call.node.id}/{name}", call.node.id, size, digest))


def _left(node: Node, done: object) -> Iterator[Left]:
    """Yield what the node reports as left there; copies come without such a list."""
    rows = done.get("left", []) if isinstance(done, dict) else []
    more = done.get("more", 0) if isinstance(done, dict) else 0
    sound = isinstance(rows, list) and isinstance(more, int) and all(map(_is_row, rows[:MOST_LEFT]))
    if not sound:
        raise refuse(node, "a malformed list of files")
    for path, kind in rows[:MOST_LEFT]:
        yield Left(node.id, path[:LONGEST_NAME], kind, more)


def _warnings(node: Node, done: object) -> list[RunWarning]:
    """Return the doubts about the run that its lead reports."""
    warnings = done.get("warnings") if isinstance(done, dict) else None
    if not fits(list[RunWarning], warnings or []):
        raise refuse(node, "malformed warnings")
    return warnings or []


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and row[1] in KINDS


def _attributes(node: Node, message: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the mode and the time of change (ns) of a file; None if they are unknown."""
    mode, mtime_ns = message.get("mode"), message.get("mtime_ns")
    if mode is None and mtime_ns is None:
        return None
    if not isinstance(mode, int) or not isinstance(mtime_ns, int) or abs(mtime_ns) > LATEST_NS:
        raise refuse(node, f"a file of mode {mode!r}, changed at {mtime_ns!r}"[:LONGEST_NAME])
    return mode & 0o777, mtime_ns


def refuse(node: Node, offer: str, hint: str = "check that the node has not been compromised") -> NodeError:
    """Return the error for something that no agent of ours sends."""
    return NodeError(f"refused {offer}", node=node.label, hint=hint)


def _checked_name(node: Node, name: object) -> str:
    """Return the checked name: a node chooses the names of its files, but not where they are stored."""
    parts = name.split("/") if isinstance(name, str) else []
    odd = any(part in ("", ".", "..") or re.search(ODD_CHARACTERS, part) for part in parts)
    if len(parts) < 2 or len(parts) > MOST_LEVELS or parts[0] not in TOPS or odd:
        raise refuse(node, f"a file named {name!r}"[:LONGEST_NAME])
    return posixpath.join(*parts)


def _checked_size(node: Node, size: object, target: Path) -> int:
    """Return the checked size: a node must not fill the disk of this machine."""
    if not isinstance(size, int) or size < 0:
        raise refuse(node, f"a file of {size!r} bytes"[:LONGEST_NAME])
    free = shutil.disk_usage(target).free - KEPT_FREE_BYTES
    if size > free:
        hint = "choose a directory on another disk: collect -o DIR"
        raise refuse(node, f"a file of {size:,} bytes: {target} has room for {max(0, free):,}", hint)
    return size


def _checked_total(node: Node, total: object) -> int:
    """Return the bytes of all files that a node announces; only progress depends on them."""
    if not isinstance(total, int) or not 0 <= total <= MOST_BYTES:
        raise refuse(node, f"files of {total!r} bytes"[:LONGEST_NAME])
    return total


def _make_directories(node: Node, target: Path, directory: Path) -> None:
    """Create the directories below `target`; they must not be links to elsewhere."""
    for level in [*reversed(directory.relative_to(target).parents), directory.relative_to(target)]:
        path = target / level
        path.mkdir(exist_ok=True)
        if path.is_symlink() and path != target:
            raise NodeError(
                f"{path} is a symbolic link", node=node.label, hint="choose another directory: collect -o DIR"
            )


def _receive_file(
    call: AgentCall, path: Path, size: int, attributes: tuple[int, int] | None, on_piece: Callable[[int], None]
) -> str:
    digest = hashlib.sha256()
    part = path.with_name(f".{os.getpid()}.part")
    part.unlink(missing_ok=True)
    left = size
    try:
        with part.open("xb") as f:
            while left:
                data = call.read(min(left, CHUNK_BYTES))
                f.write(data)
                digest.update(data)
                left -= len(data)
                on_piece(len(data))
        if call.receive()["sha256"] != digest.hexdigest():
            raise NodeError(
                f"{path.name} arrived damaged: its checksum differs", node=call.node.label, hint="collect again"
            )
        if attributes is not None:
            mode, mtime_ns = attributes
            part.chmod(mode & (part.stat().st_mode | 0o111) | 0o600)  # as far as the umask allows
            os.utime(part, ns=(mtime_ns, mtime_ns))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()
