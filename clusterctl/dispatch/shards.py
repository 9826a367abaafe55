"""Assign data shards to nodes."""

from __future__ import annotations

import bisect
import difflib
import glob
import json
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from clusterctl.common.seal import COPIED_SHARDS
from clusterctl.common.shards import copy_of, directory_of, matcher
from clusterctl.common.tree import DIRECTORY, FILE, Entry, order
from clusterctl.errors import ConfigError
from clusterctl.inventory import Node, fold

#: A file extension, of which up to two may follow the number.
ENDING = re.compile(r"\.\w*[A-Za-z]\w*")
NUMBER = re.compile(rf".*?(\d+)(?:{ENDING.pattern}){{0,2}}$", re.DOTALL)
#: NAME.EXT-00000 and NAME-00000.EXT are two spellings of the same.
SPELLED = re.compile(rf"(.+?)((?:{ENDING.pattern}){{0,2}})-(\d+)((?:{ENDING.pattern}){{0,2}})", re.DOTALL)


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
        tests = [(pattern, matcher(pattern)) for pattern in patterns]
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
        """Return a node's entries: all but the shards of other nodes' trainers, and copies of some of these."""
        owners, ranks = self._owners, node.trainer_ranks
        own = [entry for entry in self._entries if entry.path not in owners or owners[entry.path] in ranks]
        copies = self._copies(node.shard_copies) if owners else []
        if not copies:
            return own
        at = bisect.bisect(own, order(COPIED_SHARDS), key=lambda entry: order(entry.path))
        return [*own[:at], *copies, *own[at:]]

    def _copies(self, ranks: Collection[int]) -> list[Entry]:
        """Return the entries of the copies for these trainers, in order. One without shards has an empty directory."""
        files = [
            entry._replace(path=copy_of(entry.path, rank))
            for entry in self._entries
            if (rank := self._owners.get(entry.path)) is not None and rank in ranks
        ]
        directories = {directory_of(rank) for rank in ranks}
        directories.update(path for file in files for path in _above(file.path))
        made = [Entry(path, DIRECTORY, 0o700, 0) for path in {COPIED_SHARDS, *directories}] if ranks else []
        return sorted([*made, *files], key=lambda entry: order(entry.path))

    def unmatched(self) -> list[str]:
        """Return a line for each pattern that matches no file: the files it was meant for go to every node."""
        files = [entry.path for entry in self._entries if entry.kind == FILE]
        return [
            f"SHARDS: {pattern!r} matches no file in the workspace{_nearest(pattern, files)}"
            for pattern, count in self._by_pattern.items()
            if not count
        ]

    def check_spelling(self) -> None:
        """Raise ConfigError for a pattern that matches nothing, but would match shards in their other spelling.

        Those go to every node now, and each trainer would train on all of them.
        """
        for pattern, count in self._by_pattern.items():
            matches = matcher(pattern)
            meant = () if count else [one for one in self._unowned() if any(map(matches, other_spellings(one)))]
            if meant:
                better = dict.fromkeys(_pattern_of(path, "/" in pattern) for path in meant)
                patterns = [new for old in self._by_pattern for new in (better if old == pattern else (old,))]
                raise ConfigError(
                    f"SHARDS: {pattern!r} matches no file in the workspace, but {meant[0]} is spelled the other way"
                    + (f", and so are {len(meant) - 1} more" if len(meant) > 1 else ""),
                    hint=f"set SHARDS = {json.dumps(patterns)}, or rename the files",
                )

    def _unowned(self) -> Iterator[str]:
        return (entry.path for entry in self._entries if entry.kind == FILE and entry.path not in self._owners)

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


def other_spellings(path: str) -> list[str]:
    """Return a shard's path with its number elsewhere among the endings: `a.csv-00003` for `a-00003.csv`."""
    directory, name = posixpath.split(path)
    match = SPELLED.fullmatch(name)
    if match is None:
        return []
    stem, before, number, after = match.groups()
    endings = ENDING.findall(before + after)
    names = ("".join((stem, *endings[:at], "-", number, *endings[at:])) for at in range(len(endings) + 1))
    return [posixpath.join(directory, one) for one in names if one != name]


def _pattern_of(path: str, with_directory: bool) -> str:
    """Return the pattern of a shard and of those with other numbers."""
    directory, name = posixpath.split(path)
    match = SPELLED.fullmatch(name)
    assert match is not None  # it has another spelling
    pattern = f"{glob.escape(match[1] + match[2])}-*{glob.escape(match[4])}"
    return posixpath.join(glob.escape(directory), pattern) if with_directory else pattern


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a copy, without that of all copies."""
    while (path := posixpath.dirname(path)) != COPIED_SHARDS:
        yield path


def _nearest(pattern: str, files: Sequence[str]) -> str:
    """Suggest a file that the pattern may have meant: one of that name elsewhere, or one with a similar path."""
    name = matcher(posixpath.basename(pattern))
    for path in files:
        if name(path):
            return f"; did you mean {posixpath.join(posixpath.dirname(path), posixpath.basename(pattern))!r}?"
    near = difflib.get_close_matches(pattern, files[:1000], n=1)
    return f"; the closest is {near[0]!r}" if near else ""
