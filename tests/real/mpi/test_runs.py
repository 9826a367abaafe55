"""Runs of clusterctl-rank under the real mpirun. That of eight ranks on four nodes is in test_page.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real.mpi.conftest import require_mpirun
from real.mpi.lab import Lab, end, lab_in
from support.processes import wait_until
from unit.ranks.started import SETTINGS

pytestmark = pytest.mark.mpi
#: Shows its place, and what has come through of mpirun; leaves the run once there is a file `go`.
JOINS = """
import json, os, pathlib, time
from clusterctl.runtime import connect
with connect() as ps:
    found = [name for name in os.environ if name.startswith(("OMPI", "OPAL", "ORTE", "PRTE", "PMI", "CLUSTERCTL_TEST"))]
    print(json.dumps([ps.rank, ps.trainers, int(os.environ["CLUSTERCTL_NODE_ID"]), found]), flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
"""
BY_NODE = ("--map-by", "node")


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """An mpirun whose second node has a directory of its own, as a machine with a /data of its own would."""
    require_mpirun()
    with lab_in(tmp_path_factory.mktemp("unshared") / "work") as lab:
        lab.ranks.obey()
        (lab.directory / "own").mkdir()
        own = 'if [ "$OMPI_COMM_WORLD_RANK" -ge 2 ]; then set -- --shared own "$@"; fi; exec clusterctl-rank "$@"'
        mpirun = lab.begin("sh", "-c", own, "sh", "python", "train.py", np=4)
        yield mpirun
        mpirun.kill()  # unless its test has seen its end


@pytest.fixture(autouse=True)
def meanwhile(unshared: subprocess.Popen[str]) -> None:
    """Let its 30 s pass during the other tests."""


def test_a_run_is_placed_as_mpirun_says_on_uneven_nodes_and_restarts_a_trainer(lab: Lab) -> None:
    lab.hostfile.write_text("127.0.0.2 slots=3\n127.0.0.3 slots=1\n")
    lab.ranks.conf(SETTINGS.replace("RESTARTS = 0", "RESTARTS = 1"))
    lab.ranks.train(JOINS)
    mpirun = lab.train(np=4, of_mpirun=BY_NODE)
    lab.ranks.wait_for_output(4)

    def status() -> dict[str, Any]:
        return dict(json.loads(lab.ranks.cluster("status", "--json")))

    # a trainer that prints counts as starting until it has been up for a moment
    assert wait_until(lambda: status()["state"] == "running"), status()
    processes = status()["processes"]
    places = sorted((row["rank"], row["node"]) for row in processes if row["role"] == "trainer")
    assert places == [(0, 0), (1, 1), (2, 0), (3, 0)]
    assert sorted(row["node"] for row in processes if row["role"] == "pserver") == [0, 1]
    os.kill(lab.ranks.trainer_pids()[0], signal.SIGKILL)
    assert wait_until(lambda: lab.ranks.printed().count(", 4, ") == 5), lab.ranks.printed()
    (lab.directory / "go").write_text("")
    code, out, err = end(mpirun)
    assert code == 0, err
    shown = [json.loads(text) for text in re.findall(r"\[\d.*?\]\]", out)]
    assert [len(shown), [found for *_, found in shown]] == [5, [[]] * 5]
    assert sorted({(rank, node) for rank, _, node, _ in shown}) == places


def begun(lab: Lab, *options: str) -> subprocess.Popen[str]:
    """Start a run of one trainer on each of two nodes."""
    lab.ranks.obey()
    mpirun = lab.train(*options, np=2, of_mpirun=BY_NODE)
    lab.ranks.wait_for_output(2)
    return mpirun


def test_mpirun_ends_with_the_code_of_the_trainer_that_failed(lab: Lab, tmp_path: Path) -> None:
    """The job is in another directory."""
    lab.ranks.shared = tmp_path / "shared"
    lab.ranks.shared.mkdir()
    mpirun = begun(lab, "--shared", str(lab.ranks.shared))
    (lab.directory / "order-1").write_text("7")
    code, _, err = end(mpirun)
    assert code == 7, err
    assert "failed: trainer1@node1 exited with code 7" in err
    assert lab.ranks.end_state() == "failed"
    assert "trainer1@node1" in lab.ranks.cluster("why", check=False)
    assert not (lab.directory / "clusterctl-jobs").exists()


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_supervisor_ends_everything(lab: Lab, node: int) -> None:
    mpirun = begun(lab)
    supervisors = [one for one in lab.ranks.processes() if " supervisor " in one.command]
    os.kill(next(one.pid for one in supervisors if f"/node{node}/" in one.command), signal.SIGKILL)
    code, _, _ = end(mpirun)
    assert code != 0
    lab.ranks.assert_nothing_left()


def test_an_mpirun_that_is_told_to_end_stops_the_run(lab: Lab) -> None:
    mpirun = begun(lab)
    os.killpg(mpirun.pid, signal.SIGTERM)
    code, _, _ = end(mpirun)
    assert code != 0
    assert lab.ranks.end_state() == "stopped"


def test_a_killed_mpirun_stops_the_run(lab: Lab) -> None:
    mpirun = begun(lab)
    mpirun.kill()
    mpirun.communicate()
    assert lab.ranks.end_state() == "stopped"
    assert json.loads(lab.ranks.cluster("status", "--json", check=False))["state"] == "stopped"


def test_a_killed_rank_stops_the_run(lab: Lab) -> None:
    """It is the first rank of the second node."""
    mpirun = begun(lab)
    os.kill(lab.ranks.rank_pid(1), signal.SIGKILL)
    code, _, _ = end(mpirun)
    assert code != 0
    assert lab.ranks.end_state() == "stopped"


def test_mpirun_interrupted_while_ranks_gather_leaves_nothing(lab: Lab) -> None:
    lab.ranks.obey()
    mpirun = lab.train(np=4, of_mpirun=BY_NODE)
    assert wait_until(lambda: any(lab.ranks.home.glob("ranks/*/rank-*.json")))
    os.killpg(mpirun.pid, signal.SIGINT)
    code, _, _ = end(mpirun)
    assert code != 0
    lab.ranks.assert_nothing_left()


def test_mpirun_killed_while_the_run_starts_leaves_nothing(lab: Lab) -> None:
    lab.ranks.obey()
    mpirun = lab.train(np=2, of_mpirun=BY_NODE)
    assert wait_until(lambda: any(lab.ranks.home.glob("node*/JOB*/.clusterctl/lock")))
    mpirun.kill()
    mpirun.communicate()
    lab.ranks.assert_nothing_left()


def test_two_runs_of_one_directory_do_not_disturb_each_other(lab: Lab) -> None:
    lab.ranks.train(JOINS)
    both = [lab.train(np=2), lab.train(np=1)]
    lab.ranks.wait_for_output(3)
    (lab.directory / "go").write_text("")
    assert [end(one)[0] for one in both] == [0, 0]
    assert len({job.name for job in lab.ranks.jobs()}) == 2


def test_wrong_words_are_named_once(lab: Lab) -> None:
    code, _, err = end(lab.train("--share", "x", np=4))
    assert code == 2
    assert err.count("clusterctl-rank: there is no option --share") == 1, err


def test_a_directory_that_not_all_nodes_share_is_named_once_for_each_node(unshared: subprocess.Popen[str]) -> None:
    code, _, err = end(unshared)
    assert code == 1
    assert len(re.findall(r"rank 0 made no \S+/own/clusterctl-jobs/ranks/\S+ within 30 s", err)) == 1, err
    assert "clusterctl-rank --shared DIR" in err
