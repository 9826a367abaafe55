"""What each node is to have: the workspace, or with SHARDS its part of it; told as changes to what was sent last."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.agent.tree import FILE, Entry, content_of
from clusterctl.dispatch.sent import Sent
from clusterctl.dispatch.shards import Shards
from clusterctl.dispatch.workspace import Workspace
from clusterctl.inventory import Node


@dataclass(frozen=True)
class Tree:
    """What some nodes are to have. `packed` is the list of its files, or of its changes against the tree `base`."""

    entries: Sequence[Entry]
    id: str
    base: str | None
    packed: bytes

    def whole(self) -> bytes:
        return _pack(self.entries, [])

    def rows(self, runs: Sequence[Sequence[int]]) -> list[Entry]:
        """The files in these [first, end) runs of rows."""
        numbers = (number for first, end in runs for number in range(first, end))
        return [self.entries[number] for number in numbers if self.entries[number].kind == FILE]


def make_trees(
    workspace: Workspace, last: Sent | None, nodes: Sequence[Node], shards: Sequence[str], trainers: int
) -> Mapping[int, Tree]:
    """By node id; one for all nodes unless `shards` make them differ."""
    if not shards:
        base = last.entries if last else None
        tree = _tree(workspace.tree, workspace.content, base, last.tree if last else None)
        return dict.fromkeys((node.id for node in nodes), tree)
    now = Shards(workspace.tree, shards, trainers)
    then = Shards(last.entries, shards, trainers) if last else None
    trees = {}
    for node in nodes:
        entries, base = now.of(node), then.of(node) if then else None
        trees[node.id] = _tree(entries, content_of(entries), base, None if base is None else content_of(base))
    return trees


def _tree(entries: Sequence[Entry], id_: str, base: Sequence[Entry] | None, base_id: str | None) -> Tree:
    if base is None:
        return Tree(entries, id_, None, _pack(entries, []))
    if id_ == base_id:
        return Tree(entries, id_, base_id, b"")
    known = {entry.path: entry for entry in base}
    rows = [entry for entry in entries if known.pop(entry.path, None) != entry]
    if 2 * len(rows) > len(entries):
        return Tree(entries, id_, None, _pack(entries, []))
    return Tree(entries, id_, base_id, _pack(rows, list(known)))


def _pack(rows: Sequence[Entry], gone: Sequence[str]) -> bytes:
    return zlib.compress(json.dumps({"rows": rows, "gone": gone}, separators=(",", ":")).encode(), 1)
