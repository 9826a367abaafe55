"""Assign data shards to nodes."""

from __future__ import annotations

import difflib
import fnmatch
import posixpath
import re
from collections.abc import Callable, Sequence

from clusterctl.common.tree import FILE, Entry
from clusterctl.errors import ConfigError
from clusterctl.inventory import Node, fold

NUMBER = re.compile(r".*?(\d+)(?:\.\w*[A-Za-z]\w*){0,2}$", re.DOTALL)


class Shards:
    """The data shards among `entries`: a file that matches a pattern belongs to trainer (its number mod `trainers`).

    A pattern without a slash matches file names in any directory. In one with a slash, `*` also matches slashes.
    Raises ConfigError for a file that matches but has no number.
    """

    def __init__(self, entries: Sequence[Entry], patterns: Sequence[str], trainers: int) -> None:
        self._entries = entries
        self._trainers = trainers
        self._owners: dict[str, int] = {}
        self._by_pattern = dict.fromkeys(patterns, 0)
        tests = [(pattern, _test(pattern)) for pattern in patterns]
        for entry in entries if tests else ():
            if entry.kind == FILE:
                matching = [pattern for pattern, matches in tests if matches(entry.path)]
                for pattern in matching:
                    self._by_pattern[pattern] += 1
                if matching:
                    self._owners[entry.path] = shard_number(entry.path) % trainers

    @property
    def count(self) -> int:
        return len(self._owners)

    def of(self, node: Node) -> list[Entry]:
        """Return a node's entries: everything except the shards of other nodes' trainers."""
        owners, ranks = self._owners, node.trainer_ranks
        return [entry for entry in self._entries if entry.path not in owners or owners[entry.path] in ranks]

    def unmatched(self) -> list[str]:
        """Return a line for each pattern that matches no file: the files it was meant for go to every node."""
        files = [entry.path for entry in self._entries if entry.kind == FILE]
        return [
            f"SHARDS: {pattern!r} matches no file in the workspace{_nearest(pattern, files)}"
            for pattern, count in self._by_pattern.items()
            if not count
        ]

    def too_few(self, nodes: Sequence[Node]) -> list[str]:
        """Return a line about the trainers whose nodes, of all nodes of the cluster, get no shard, if there are any."""
        owners = set(self._owners.values())
        without = [rank for node in nodes if owners.isdisjoint(node.trainer_ranks) for rank in node.trainer_ranks]
        if not owners or not without:
            return []
        shards = "is only 1 shard" if self.count == 1 else f"are only {self.count} shards"
        return [
            f"SHARDS: there {shards}, and the nodes of {len(without)} of {self._trainers} trainers get none: "
            f"{'trainer' if len(without) == 1 else 'trainers'} {fold(without)}\n"
            f"  to make a shard for every trainer: clusterctl split FILE --count {self._trainers}"
        ]


def shard_number(path: str) -> int:
    """Return the number at the end of a shard's name: 3 for `train.txt-00003`, `part-3.csv` and `part-3.csv.gz`."""
    match = NUMBER.match(posixpath.basename(path))
    if match is None:
        raise ConfigError(
            f"{path!r} matches SHARDS, but its name does not end in a number",
            hint="name shards like train.txt-00000, or narrow the pattern in SHARDS",
        )
    return int(match[1])


def _test(pattern: str) -> Callable[[str], object]:
    matches = re.compile(fnmatch.translate(pattern)).match
    return matches if "/" in pattern else lambda path: matches(posixpath.basename(path))


def _nearest(pattern: str, files: Sequence[str]) -> str:
    """Suggest a file that the pattern may have meant: one of that name elsewhere, or one with a similar path."""
    name = _test(posixpath.basename(pattern))
    for path in files:
        if name(path):
            return f"; did you mean {posixpath.join(posixpath.dirname(path), posixpath.basename(pattern))!r}?"
    near = difflib.get_close_matches(pattern, files[:1000], n=1)
    return f"; the closest is {near[0]!r}" if near else ""
