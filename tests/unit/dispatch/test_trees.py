"""The trees that nodes are to have, and their encoding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.common.tree import FILE, Entry, content_of
from clusterctl.dispatch.node_trees import LastDispatch, make_trees
from clusterctl.dispatch.workspace import Workspace

NODES: list[Any] = [SimpleNamespace(id=number, trainer_ranks=(number,), shard_copies=()) for number in range(4)]
SHARDS = ("data-*",)


def workspace(*names: str, mtime_ns: int = 0) -> Workspace:
    entries = tuple(Entry(name, FILE, 0o644, mtime_ns, 1, f"{number:064x}") for number, name in enumerate(names))
    return Workspace(Path("w"), entries, ())


def sent(what: Workspace) -> LastDispatch:
    return LastDispatch("job", what.content, what.tree)


SHARDED = workspace("a.py", "\udcff\n.py", *(f"data-{number}" for number in range(4)))
COMMON = workspace("a.py", "b.py", "c.py", "d.py")


@pytest.mark.parametrize("last", [None, sent(SHARDED), sent(COMMON)])
@pytest.mark.parametrize("now", [SHARDED, COMMON])
def test_a_tree_has_the_same_id_as_on_the_nodes(now: Workspace, last: LastDispatch | None) -> None:
    for tree in make_trees(now, last, NODES, SHARDS, 4).values():
        assert tree.id == content_of(tree.entries)


@pytest.mark.parametrize("shards", [(), SHARDS, ("nothing-*",)])
def test_an_unchanged_tree_is_not_sent_again(shards: tuple[str, ...]) -> None:
    trees = make_trees(SHARDED, sent(SHARDED), NODES, shards, 4)
    assert [tree.packed for tree in trees.values()] == [b""] * 4
    assert [tree.base for tree in trees.values()] == [tree.id for tree in trees.values()]


@pytest.mark.parametrize("last", [None, sent(SHARDED)])
@pytest.mark.parametrize(("shards", "different"), [((), 1), (SHARDS, 4), (("nothing-*",), 1)])
def test_nodes_with_the_same_files_share_a_tree(
    shards: tuple[str, ...], different: int, last: LastDispatch | None
) -> None:
    trees = make_trees(SHARDED, last, NODES, shards, 4)
    assert len({id(tree) for tree in trees.values()}) == different


def test_few_changes_are_sent_as_a_delta_and_many_as_a_new_tree() -> None:
    few = workspace("a.py", "b.py", "c.py")
    assert {tree.base for tree in make_trees(few, sent(COMMON), NODES, (), 4).values()} == {COMMON.content}
    touched = workspace("a.py", "b.py", "c.py", "d.py", mtime_ns=1)
    assert {tree.base for tree in make_trees(touched, sent(COMMON), NODES, (), 4).values()} == {None}
