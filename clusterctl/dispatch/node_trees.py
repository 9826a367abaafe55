"""The tree each node is to have: the workspace, or its part of it with SHARDS, as changes to the last dispatch."""

from __future__ import annotations

import contextlib
import functools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from clusterctl.common.files import write_atomic
from clusterctl.common.tree import FILE, Entry, content_of_json
from clusterctl.dispatch.shards import Shards
from clusterctl.dispatch.workspace import Workspace
from clusterctl.inventory import Node


@dataclass(frozen=True)
class Tree:
    """The tree that some nodes are to have. `packed`: its list of files, or the changes relative to the tree `base`."""

    entries: Sequence[Entry]
    id: str
    base: str | None
    packed: bytes

    def whole(self) -> bytes:
        return _pack(self.entries, [])

    def rows(self, runs: Sequence[Sequence[int]]) -> list[Entry]:
        """Return the files in these [first, end) ranges of rows."""
        numbers = (number for first, end in runs for number in range(first, end))
        return [self.entries[number] for number in numbers if self.entries[number].kind == FILE]

    def bytes_of(self, runs: Sequence[Sequence[int]], torn: Mapping[str, int]) -> int:
        """Return the bytes of the files in these rows, without the beginnings that a node has, by digest."""
        return sum(entry.size - torn.get(entry.digest, 0) for entry in self.rows(runs))


def make_trees(
    workspace: Workspace, last: LastDispatch | None, nodes: Sequence[Node], shards: Sequence[str], trainers: int
) -> Mapping[int, Tree]:
    """Return the trees by node id. Nodes with the same contents share one object."""
    now = _NodeTrees(workspace.tree, workspace.content, shards, trainers)
    then = None
    if last:
        then = now if last.tree == workspace.content else _NodeTrees(last.entries, last.tree, shards, trainers)
    made: dict[tuple[str, str | None], Tree] = {}
    trees = {}
    for node in nodes:
        part, base = now.of(node), then.of(node) if then else None
        key = part.id, base.id if base else None
        if key not in made:
            made[key] = _tree(part, base)
        trees[node.id] = made[key]
    return trees


class _NodeTree(NamedTuple):
    entries: Sequence[Entry]
    id: str


class _NodeTrees:
    """A whole tree with its name, and each node's part of it with the name of that part."""

    def __init__(self, entries: Sequence[Entry], id_: str, shards: Sequence[str], trainers: int) -> None:
        self._whole = _NodeTree(entries, id_)
        self._shards = Shards(entries, shards, trainers)
        self._namer = TreeNamer() if self._shards.count else None

    def of(self, node: Node) -> _NodeTree:
        if self._namer is None:
            return self._whole
        entries = self._shards.of(node)
        return _NodeTree(entries, self._namer.content_of(entries))


class TreeNamer:
    """Computes the names of many trees that share most entries. Same result as `agent.tree.content_of`."""

    def __init__(self) -> None:
        self._encode = functools.cache(json.JSONEncoder(separators=(",", ":")).encode)

    def content_of(self, entries: Iterable[Entry]) -> str:
        return content_of_json(f"[{','.join(map(self._encode, entries))}]".encode())


def _tree(now: _NodeTree, then: _NodeTree | None) -> Tree:
    if then is None:
        return Tree(now.entries, now.id, None, _pack(now.entries, []))
    if now.id == then.id:
        return Tree(now.entries, now.id, then.id, b"")
    known = {entry.path: entry for entry in then.entries}
    rows = [entry for entry in now.entries if known.pop(entry.path, None) != entry]
    if 2 * len(rows) > len(now.entries):
        return Tree(now.entries, now.id, None, _pack(now.entries, []))
    return Tree(now.entries, now.id, then.id, _pack(rows, list(known)))


def _pack(rows: Sequence[Entry], gone: Sequence[str]) -> bytes:
    return zlib.compress(json.dumps({"rows": rows, "gone": gone}, separators=(",", ":")).encode(), 1)


@dataclass(frozen=True)
class LastDispatch:
    """The last job made from a workspace: its id, the name of its contents, its entries."""

    job: str
    tree: str
    entries: Sequence[Entry]


def load(cache: Path | None, source: str) -> LastDispatch | None:
    """Return the last dispatch; None if it is unknown or the cache is damaged."""
    if cache is None:
        return None
    try:
        data = json.loads(_file(cache, source).read_bytes())
        return LastDispatch(data["job"], data["tree"], [Entry(*row) for row in data["entries"]])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it may have millions of values
        return None


def save(cache: Path | None, source: str, sent: LastDispatch) -> None:
    """Cache the last dispatch. If the cache cannot be written, do without it."""
    if cache is None:
        return
    with contextlib.suppress(OSError):
        cache.mkdir(0o700, parents=True, exist_ok=True)
        data = {"job": sent.job, "tree": sent.tree, "entries": sent.entries}
        write_atomic(_file(cache, source), json.dumps(data, separators=(",", ":")).encode(), durable=False)


def _file(cache: Path, source: str) -> Path:
    return cache / f"sent-{source}.json"
