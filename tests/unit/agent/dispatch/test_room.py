"""The disk space that a dispatch takes on a node: what arrives, and copies where the file system makes them in full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent.dispatch import room
from clusterctl.agent.dispatch.room import RequiredSpace
from clusterctl.agent.node.content import BLOCK, LocalCopy, Stamp, Sums
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry

STAMP = Stamp(0, 0, 0)


def file(path: str, blocks: int, digest: str) -> Entry:
    return Entry(path, FILE, 0o644, 0, blocks * BLOCK - 1, digest)


TREE = [
    Entry("d", DIRECTORY, 0o755, 0),
    file("d/arrives", 100, "new"),
    file("d/continues", 1000, "torn"),
    file("left", 10, "left over"),
    file("old", 1, "here"),
    file("twin", 100, "new"),
    Entry("link", LINK, 0o777, 0, target="old"),
]
SOURCES = {"left over": LocalCopy(Path("x"), STAMP, True, True), "here": LocalCopy(Path("y"), STAMP, False, True)}


@pytest.mark.parametrize(("kind", "copied"), [("ext4", 101), ("tmpfs", 101), ("btrfs", 0), ("", 0)])
def test_files_that_arrive_take_space_and_copies_only_on_some_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, copied: int
) -> None:
    monkeypatch.setattr(room, "_type_of", lambda device: kind)
    need = RequiredSpace(tmp_path, TREE, SOURCES, {"torn": 900 * BLOCK})
    files = [number for number, entry in enumerate(TREE) if entry.kind == FILE]
    about = need.about(files, Sums(directories=1), None)
    assert about["new"] == (1 + 100 + 100 + copied) * BLOCK
    assert about["in_place"] is None
    arrives = [number for number, entry in enumerate(TREE) if entry.path == "d/arrives"]
    assert need.about(files, Sums(), arrives)["in_place"] == 100 * BLOCK
    others = Sums(files=1, bytes=10 * BLOCK, blocks=10)
    assert need.about(arrives, others, arrives)["new"] == (100 + (10 if kind in room.COPIES_IN_FULL else 0)) * BLOCK


def test_the_free_space_is_that_of_the_file_system_and_nodes_on_one_disk_can_be_recognized(tmp_path: Path) -> None:
    about = [RequiredSpace(path, [], {}, {}).about([], Sums(), None) for path in (tmp_path, tmp_path.parent)]
    assert about[0]["disk"] == about[1]["disk"]
    assert about[0]["path"] == str(tmp_path)
    system = os.statvfs(tmp_path)
    assert 0 <= about[0]["free"] <= system.f_blocks * system.f_frsize
