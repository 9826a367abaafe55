"""A directory tree as a list of entries, which the control machine sends and a node verifies and builds.

Paths are JSON strings in which bytes that are not UTF-8 are lone surrogates, so that any name arrives unchanged.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.safe_json import dumps
from clusterctl.common.seal import COPIED_SHARDS

FILE, DIRECTORY, LINK = "f", "d", "l"
COPY_BYTES = 1 << 20
HEADER = struct.Struct(">32sQ")  # before each blob: its digest, its size
NOT_NAMES = frozenset(("", ".", ".."))
#: Found only in file names that attack a terminal: control characters and text direction marks. A regular expression.
ODD_CHARACTERS = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
END = (1 << 64) - 1  # as a size: the end of the blobs
SHORT_CHARS = 80
DISPATCH_LATER = "dispatch again when nothing writes to the workspace"


class Entry(NamedTuple):
    """One path of a tree: `mode` is the permission bits, `digest` a file's sha256, `target` a link's."""

    path: str
    kind: str
    mode: int
    mtime_ns: int
    size: int = 0
    digest: str = ""
    target: str = ""


def shortened(path: str) -> str:
    """Return a path for a message, without its middle if it is long."""
    return path if len(path) <= SHORT_CHARS else f"{path[: SHORT_CHARS // 2]}...{path[-SHORT_CHARS // 2 :]}"


def order(path: str) -> str:
    """Return a key that sorts a directory right before its contents."""
    return path.replace("/", "\0")


def content_of(entries: Iterable[Entry]) -> str:
    """Return a name for the contents of a tree: 32 hex digits."""
    return content_of_json(dumps(list(entries)))


def content_of_json(rows: bytes) -> str:
    return hashlib.sha256(rows).hexdigest()[:32]


def owned_name(tree: str, source: str, node: int, nodes: int) -> str:
    """Return the name of a tree with its source, its node and the number of nodes."""
    return f"{tree}:{source}:{node}:{nodes}"


def fold_rows(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending row numbers as [first, end) pairs."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return runs


def decode(rows: Any) -> list[Entry]:
    """Return the entries of a received manifest. Raises `AgentError` for any path that could leave the tree."""
    try:
        entries = [row if type(row) is Entry else Entry(*row) for row in rows]
        check(entries)
    except (TypeError, ValueError, AttributeError) as exc:
        raise AgentError(f"the list of files is malformed: {exc}", kind="refused") from exc
    return entries


def check(entries: Iterable[Entry]) -> None:
    """Refuse absolute paths, `..`, links that lead outside, paths through links, duplicates and unknown kinds."""
    kinds: dict[str, str] = {"": DIRECTORY}
    for entry in entries:
        parts = entry.path.split("/")
        if "\0" in entry.path or not NOT_NAMES.isdisjoint(parts):
            raise _refused(entry, "is not a path inside the workspace")
        if entry.path in kinds:
            raise _refused(entry, "is listed twice")
        if kinds.get(entry.path.rpartition("/")[0]) != DIRECTORY and entry.path != COPIED_SHARDS:
            raise _refused(entry, "is not below a directory of the workspace")
        if not is_sound(entry):
            raise _refused(entry, "is neither a plain file, a directory nor a link")
        if entry.kind == LINK and leads_outside(entry.path, entry.target):
            raise _refused(entry, f"is a link to {entry.target}, which may lead outside the workspace")
        kinds[entry.path] = entry.kind


def is_sound(entry: Entry) -> bool:
    return entry.kind in (FILE, DIRECTORY, LINK) and 0 <= entry.mode <= 0o777 and entry.size >= 0


def leads_outside(path: str, target: str) -> bool:
    """Return True if the link at `path` may point out of the tree.

    `..` is allowed only at the start of `target`: after a name, which may be another link, it could lead anywhere.
    """
    if not target or target.startswith("/") or "\0" in target:
        return True
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return ups > path.count("/") or ".." in parts[ups:]


def _refused(entry: Entry, problem: str) -> AgentError:
    return AgentError(f"{entry.path!r} {problem}", kind="refused", hint="remove it from the workspace")


READ_BYTES = 1 << 18


class ByteReader:
    """A stream of bytes from a source, compressed or not."""

    def __init__(self, source: Callable[[int], bytes | memoryview], compressed: bool) -> None:
        self._source = source
        self._zlib = zlib.decompressobj() if compressed else None
        self._data = memoryview(b"")

    def some(self, count: int) -> memoryview:
        """Return at least one and at most `count` bytes. Raises Gone at the end of the stream."""
        if not self._data:
            self._data = memoryview(self._more())
        piece, self._data = self._data[:count], self._data[count:]
        return piece

    def _more(self) -> bytes | memoryview:
        while True:
            if self._zlib is None:
                data = self._source(READ_BYTES)
            else:
                packed = self._zlib.unconsumed_tail or self._source(READ_BYTES)
                data = self._zlib.decompress(packed, READ_BYTES)
                if packed and not data:
                    continue
            if not data:
                raise Gone
            return data

    def skip(self, count: int) -> None:
        while count:
            count -= len(self.some(count))

    def exactly(self, count: int) -> bytes:
        parts = []
        while count:
            piece = self.some(count)
            count -= len(piece)
            parts.append(bytes(piece))
        return b"".join(parts)
