"""How ranks find each other, and which of them share a node."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.ranks.errors import RankError
from clusterctl.ranks.meeting import Meeting, Plan, PlannedNode, RankProcess, World, nodes_of

FOUND = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-77@1",
}


def entry(rank: int, local_rank: int, local_size: int, machine: str, session: int = 1, parent: int = 1) -> RankProcess:
    return RankProcess(
        rank, local_rank, local_size, machine, machine, parent, session, [0], [rank, 1, "boot"], f"nonce{rank}"
    )


def ranks(groups: Sequence[Sequence[RankProcess]]) -> list[list[int]]:
    return [[one.rank for one in group] for group in groups]


def test_a_rank_reads_its_place_from_what_mpirun_sets() -> None:
    assert World.of({**FOUND, "OMPI_COMM_WORLD_NODE_RANK": "x"}) == World(5, 8, 1, 2, "mpi-prterun-host-77@1")
    assert World.of({**FOUND, "PMIX_NAMESPACE": "../a b"}).namespace == "mpi-.._a_b"


class Environment(dict[str, str]):
    """What mpirun sets, and which of it was read."""

    def __init__(self) -> None:
        super().__init__({**FOUND, "PMIX_RANK": "7", "PMI_RANK": "7", "OMPI_COMM_WORLD_NODE_RANK": "x"})
        self.were_read: set[str] = set()

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        self.were_read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.were_read.add(name)
        return super().__getitem__(name)


def test_a_rank_reads_nothing_else_of_mpirun() -> None:
    environ = Environment()
    assert World.of(environ).rank == 5
    assert environ.were_read == set(FOUND)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"])
def test_outside_mpirun_the_error_says_how_to_start_it(name: str) -> None:
    with pytest.raises(RankError, match="this is no rank of mpirun") as caught:
        World.of({key: value for key, value in FOUND.items() if key != name})
    assert (caught.value.code, caught.value.hint) == (2, "mpirun -np 8 clusterctl-rank python train.py")


def test_nodes_of_unequal_size_are_in_the_order_of_their_lowest_ranks() -> None:
    found = [entry(0, 0, 1, "z"), entry(1, 0, 2, "y"), entry(2, 0, 1, "x"), entry(3, 1, 2, "y")]
    assert ranks(nodes_of(found)) == [[0], [1, 3], [2]]


@pytest.mark.parametrize("by", ["session", "parent"])
def test_daemons_on_one_machine_are_told_apart(by: str) -> None:
    by_node = [entry(rank, rank // 4, 2, "m", **{by: rank % 4}) for rank in range(8)]
    assert ranks(nodes_of(by_node)) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    by_slot = [entry(rank, rank % 2, 2, "m", **{by: rank // 2}) for rank in range(8)]
    assert ranks(nodes_of(by_slot)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_ranks_of_one_node_may_have_sessions_of_their_own() -> None:
    assert ranks(nodes_of([entry(rank, rank, 3, "m", session=rank) for rank in range(3)])) == [[0, 1, 2]]


def test_ranks_that_no_node_explains_are_an_error() -> None:
    found = [entry(rank, rank % 2, 2, "m", session=rank) for rank in range(4)]
    with pytest.raises(RankError, match=r"cannot tell the nodes on m apart, from ranks 0 \(0 of 2\)"):
        nodes_of(found)


def mine(rank: int = 0) -> RankProcess:
    return RankProcess.mine(World(rank, 2, 0, 1, "mpi-1"))


def test_all_ranks_come_and_get_the_plan(tmp_path: Path) -> None:
    first, second = (Meeting(tmp_path, "mpi-1") for _ in range(2))
    assert not second.is_seen()
    first.make()
    assert second.is_seen()
    ours = [mine(0), mine(1)]
    first.enter(ours[0])
    threading.Timer(0.1, lambda: second.enter(ours[1])).start()
    gathered = first.gather(2, limit_s=30)
    assert [one.nonce for one in gathered] == [one.nonce for one in ours]
    assert second.plan(ours[1]) is None
    plan = Plan("JOB1", [PlannedNode("/a", [0], [0], [1, 2, "b"]), PlannedNode("/b", [1], [1], [2, 2, "b"])])
    first.publish(plan, gathered)
    seen = second.plan(ours[1])
    assert seen == plan
    assert seen.node_of(1) == 1
    assert second.calls(1).is_dir()


def test_a_rank_that_waits_for_the_directory_leaves_nothing_open(tmp_path: Path) -> None:
    meeting, first = Meeting(tmp_path, "mpi-1"), Meeting(tmp_path, "mpi-2")
    first.make()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        assert not meeting.is_seen()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_everything_is_private_to_the_account(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, "mpi-1")
    before = os.umask(0o077)
    try:
        meeting.make()
        meeting.enter(mine())
        meeting.publish(Plan("JOB1", [PlannedNode("/a", [0], [0], [1, 2, "b"])]), [mine()])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (meeting.home, *meeting.home.rglob("*"))} == {0}


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, "mpi-1")
    meeting.make()
    meeting.home.chmod(0o777)
    for look in (meeting.is_seen, meeting.make):
        with pytest.raises(RankError, match="belongs to another account, or others can write to it"):
            look()


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, "mpi-1")
    meeting.make()
    meeting.enter(mine(1))
    with pytest.raises(RankError, match=r"did not come to .* within 0 s: 0, 2, 3, 4, 5, 6, 7, 8 and 1 more") as caught:
        meeting.gather(10, limit_s=0)
    assert "--shared DIR" in caught.value.hint


def test_what_an_earlier_mpirun_left_does_not_count(tmp_path: Path) -> None:
    """Namespaces may come again: they are made of a pid."""
    meeting = Meeting(tmp_path, "mpi-1")
    meeting.make()
    meeting.publish(Plan("JOB1", [PlannedNode("/a", [0], [0], [1, 2, "b"])]), [mine()])
    meeting.fail(3, [mine()])
    now = mine()
    assert meeting.plan(now) is None
    assert meeting.failure(now) is None
    meeting.make()
    meeting.enter(now)
    meeting.fail(4, list(meeting.entries()))
    assert meeting.failure(now) == 4


def test_a_directory_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("file", "Not a directory"), ("absent", "No such file or directory")):
        with pytest.raises(RankError, match=rf"cannot make .*/{name}/clusterctl-jobs: {reason}") as caught:
            Meeting(tmp_path / name, "mpi-1").make()
        assert "--shared DIR" in caught.value.hint
    assert not (tmp_path / "absent").exists()
