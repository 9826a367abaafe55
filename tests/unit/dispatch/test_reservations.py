"""Reservations of jobs: exclusive among programs, and gone with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clusterctl.dispatch.decision import DesiredTrees, decide
from clusterctl.dispatch.reservations import Reservations
from support.processes import wait_until
from unit.dispatch.test_decision import NEW, OLD, answer

RESERVE = """
import sys
from pathlib import Path
from clusterctl.dispatch.reservations import Reservations
reservations = Reservations(Path(sys.argv[1]))
print(reservations.make(sys.argv[2], own=False), flush=True)
sys.stdin.read()
"""


def test_a_reserved_job_is_neither_used_nor_replaced(tmp_path: Path) -> None:
    mine, other = Reservations(tmp_path), Reservations(tmp_path)
    assert mine.make(OLD, own=False)
    for tree, reservations, own in (("t", other, True), ("changed", other, True), ("t", mine, False)):
        wanted = DesiredTrees({0: tree}, "here", 2, None, lambda job, r=reservations, o=own: r.allow(job, own=o))  # type: ignore[misc]
        assert decide(NEW, {0: answer(0)}, wanted) == (NEW, {0: {"go": NEW, "supersede": None}})
    wanted = DesiredTrees({0: "t"}, "here", 2, None, lambda job: mine.allow(job, own=True))
    assert decide(NEW, {0: answer(0)}, wanted) == (OLD, {0: {"keep": OLD}})


def test_one_program_reserves_a_job_until_it_gives_it_up(tmp_path: Path) -> None:
    mine, other = Reservations(tmp_path), Reservations(tmp_path)
    assert mine.make(OLD, own=False)
    assert not mine.make(OLD, own=False)
    assert mine.make(OLD, own=True)
    assert not other.make(OLD, own=True)
    assert other.make(NEW, own=True)
    mine.close()
    assert [path.name for path in (tmp_path / "reserved").iterdir()] == [NEW]
    assert other.make(OLD, own=False)
    other.close()
    assert not list((tmp_path / "reserved").iterdir())


def test_a_reservation_ends_with_its_program_however_it_ends(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", RESERVE, str(tmp_path), OLD]
    mine = Reservations(tmp_path)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "True\n"
        assert not mine.allow(OLD, own=True)
        assert not mine.make(OLD, own=True)
        program.kill()
    assert wait_until(lambda: mine.allow(OLD, own=False))
    assert mine.make(NEW, own=False)
    assert [path.name for path in (tmp_path / "reserved").iterdir()] == [NEW]
    mine.close()


def test_a_name_that_a_node_made_up_is_no_path(tmp_path: Path) -> None:
    mine = Reservations(tmp_path / "cache")
    assert mine.allow("../../secret", own=False)
    assert mine.make("../secret", own=False)
    mine.close()
    assert not list(tmp_path.iterdir())
