"""A dispatch for which a disk is too small is refused before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cluster.answers import read
from clusterctl.dispatch import Dispatched, Progress, dispatch, room, scan
from clusterctl.dispatch.decision import DiskSpace, DispatchAnswer, Instruction
from clusterctl.errors import NodeError
from clusterctl.inventory import Node
from unit.agent.nodes import BUNDLE, PipeCluster

MB = 1_000_000
SPARE = room.SPARE_BYTES
NEW = Instruction(go="JOB1", supersede=None)
CHANGED = Instruction(go="JOB2", supersede="JOB1")


def answer(
    new: int = 100 * MB, in_place: int | None = None, free: int | None = 200 * MB, disk: str = "a"
) -> DispatchAnswer:
    return {"room": {"path": "/data/clusterctl", "disk": disk, "free": free, "new": new, "in_place": in_place}}


@pytest.mark.parametrize(
    ("space", "instruction", "fits"),
    [
        (answer(free=100 * MB + SPARE), NEW, True),
        (answer(free=100 * MB + SPARE - 1), NEW, False),
        (answer(in_place=5 * MB, free=20 * MB), CHANGED, True),
        (answer(in_place=5 * MB, free=20 * MB), NEW, False),
        (answer(new=0, free=0), NEW, True),
        (answer(free=None), NEW, True),
        (answer(free=0), Instruction(keep="JOB1"), True),
        ({"dir": "/unchanged"}, NEW, True),
    ],
)
def test_a_tree_fits_if_some_space_is_left(space: DispatchAnswer, instruction: Instruction, fits: bool) -> None:
    assert (room.too_small({0: space}, {0: instruction}) == {}) == fits


def test_nodes_that_share_a_disk_need_room_together() -> None:
    answers = {node: answer(disk="ab"[node == 2]) for node in range(3)}
    errors = room.too_small(answers, dict.fromkeys(answers, NEW))
    assert list(errors) == [0, 1]
    assert errors[1].node == "node1"
    assert errors[1].message == (
        "too little room in /data/clusterctl: it needs 100.0 MB and 10.0 MB to spare, and 200.0 MB are free; "
        "node[0,1] share its disk and need 200.0 MB together"
    )


@pytest.mark.parametrize("wrong", [{"new": "7"}, {"free": 0.5}, {"in_place": []}, {"path": None}])
def test_a_malformed_report_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"dispatch: `{min(wrong)}` must be"):
        read(DiskSpace, {**answer()["room"], **wrong}, "dispatch")


class Place:
    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        (self.workspace / "data").write_bytes(bytes(3 * MB))
        self.cluster = PipeCluster(directory, sys.executable, 3, RELAY="always", NIC="127.0.0.0/8")
        self.cluster.ask({"op": "jobs"})
        self.sent: list[int] = []

    def fill(self, *nodes: int) -> None:
        """Let the disks of these nodes have a little less than is needed."""
        for node in nodes:
            lib = self.cluster.home(node) / "clusterctl/.clusterctl/lib" / BUNDLE.digest
            with (lib / "clusterctl/agent/dispatch/room.py").open("a") as f:
                f.write(f"\nfree = lambda root: {2 * MB + SPARE}\nboot_id = lambda: {str(node)!r}\n")

    def dispatch(self, *, allow_partial: bool = False) -> Dispatched:
        def report(node: Node, done: int, total: int) -> None:
            self.sent.append(node.id)

        workspace, progress = scan(self.workspace), Progress(report)
        return dispatch(self.cluster, workspace, progress, "JOB20261121-000001", allow_partial=allow_partial)

    def jobs(self) -> list[int]:
        return [node.id for node in self.cluster.nodes if list(self.cluster.home(node.id).glob("clusterctl/JOB*"))]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert made.cluster.left() == []


def test_nothing_is_sent_if_the_disk_of_any_node_is_too_small(place: Place) -> None:
    place.fill(1)
    with pytest.raises(NodeError, match=r"^node1: nothing was sent: too little room in .*/home1/clusterctl: ") as info:
        place.dispatch()
    assert "it needs 3.0 MB and 10.0 MB to spare, and 12.0 MB are free" in info.value.message
    assert "clusterctl prune" in str(info.value.hint)
    assert (info.value.exit_code, place.sent, place.jobs()) == (3, [], [])


def test_with_allow_partial_the_nodes_that_have_room_get_the_job(place: Place) -> None:
    place.fill(1)
    done = place.dispatch(allow_partial=True)
    assert [outcome.ok for outcome in done.outcomes] == [True, False, True]
    assert place.jobs() == [0, 2]
    assert 1 not in place.sent
