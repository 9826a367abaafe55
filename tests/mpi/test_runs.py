"""Runs of clusterctl-rank under the real mpirun, on four nodes with two slots each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clusterctl.runtime import load_model
from clusterctl.templates import copy_workspace
from mpi.lab import Lab, end
from ranks.started import OBEYS, SETTINGS
from support.processes import wait_until
from support.site import make_site

pytestmark = pytest.mark.mpi
TRAINERS, FEW = 8, 4
SHOW = """
import os
from clusterctl.runtime import connect
with connect() as ps:
    print("rank", ps.rank, "of", ps.trainers, "on node", os.environ["CLUSTERCTL_NODE_ID"], flush=True)
"""


def bits(model: Path) -> dict[str, bytes]:
    parts = {name: one if isinstance(one, tuple) else (one,) for name, one in load_model(model).items()}
    return {name: b"".join(np.ascontiguousarray(part).tobytes() for part in own) for name, own in parts.items()}


@pytest.mark.timeout(500)
def test_the_demo_trains_the_same_tensors_as_over_ssh(lab: Lab, tmp_path: Path) -> None:
    workspace = lab.directory / "ngram"
    copy_workspace(workspace)
    prepare = [sys.executable, "prepare_data.py", "--shards", str(TRAINERS)]
    subprocess.run(prepare, cwd=workspace, check=True, capture_output=True, timeout=100)
    (tmp_path / "ssh").mkdir()
    with make_site("embedded", tmp_path / "ssh") as site:
        site.conf(PYTHON=sys.executable, TRAINERS_PER_NODE=2, COPIES=1, MODEL_ON_LEAD_MB=0)
        job = site.ok("dispatch", str(workspace), "--json").json()["job"]
        site.ok("start", job, "--num_passes=1", timeout_s=200)
        site.ok("collect", job, "-o", "result")
        expected = bits(site.directory / "result" / "model")
    words = ("clusterctl-rank", "python", str(workspace / "train.py"), "--num_passes", "1")
    code, out, err = end(lab.begin(*words), timeout_s=200)
    assert code == 0, err
    assert out.count("held-out perplexity") == TRAINERS
    lab.ranks.cluster("collect", "-o", str(lab.directory / "result"))
    model = bits(lab.directory / "result" / "model")
    assert sorted(model) == sorted(expected)
    assert [name for name in model if model[name] != expected[name]] == []


@pytest.mark.parametrize("by", ["slot", "node"])
def test_trainers_have_the_ranks_and_nodes_that_mpirun_gave_them(lab: Lab, by: str) -> None:
    lab.ranks.train(SHOW)
    code, out, err = end(lab.train(of_mpirun=("--map-by", by)))
    assert code == 0, err
    shown = sorted((int(rank), int(node)) for rank, node in re.findall(r"rank (\d) of 8 on node (\d)", out))
    assert shown == [(rank, rank // 2 if by == "slot" else rank % 4) for rank in range(TRAINERS)]
    rows = json.loads(lab.ranks.cluster("status", "--json"))["processes"]
    trainers = sorted((row["rank"], row["node"]) for row in rows if row["role"] == "trainer")
    assert trainers == shown
    assert sorted(row["node"] for row in rows if row["role"] == "pserver") == [0, 1, 2, 3]


def begun(lab: Lab) -> subprocess.Popen[str]:
    """Start a run of two trainers on each of two nodes."""
    lab.ranks.train(OBEYS)
    mpirun = lab.train(np=FEW)
    lab.ranks.wait_for_output(FEW)
    return mpirun


def state(lab: Lab) -> str:
    """Return the state of the newest run, once nothing is left of it."""
    lab.ranks.assert_nothing_left()
    return str(json.loads(lab.ranks.cluster("status", "--json", check=False))["state"])


def test_mpirun_ends_with_the_code_of_the_trainer_that_failed(lab: Lab) -> None:
    mpirun = begun(lab)
    (lab.directory / "order-3").write_text("7")
    code, _, err = end(mpirun)
    assert code == 7, err
    assert state(lab) == "failed"
    assert "exited with code 7" in lab.ranks.cluster("why", check=False)


def test_a_killed_trainer_ends_everything_with_128_and_the_signal(lab: Lab) -> None:
    mpirun = begun(lab)
    os.kill(lab.ranks.trainer_pids()[0], signal.SIGKILL)
    code, _, err = end(mpirun)
    assert code == 137, err
    assert state(lab) == "failed"


def test_a_killed_trainer_is_restarted_if_restarts_are_left(lab: Lab) -> None:
    lab.ranks.conf(SETTINGS.replace("RESTARTS = 0", "RESTARTS = 1"))
    mpirun = begun(lab)
    os.kill(lab.ranks.trainer_pids()[0], signal.SIGKILL)
    logs = lab.directory / "clusterctl-jobs"
    assert wait_until(
        lambda: sum(log.read_text().count("up") for log in logs.glob("node*/JOB*/log/train*.log")) == FEW + 1
    )
    for rank in range(FEW):
        (lab.directory / f"order-{rank}").write_text("0")
    end(mpirun)


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_supervisor_ends_everything(lab: Lab, node: int) -> None:
    mpirun = begun(lab)
    supervisors = [one for one in lab.ranks.processes() if " supervisor " in one.command]
    os.kill(next(one.pid for one in supervisors if f"/node{node}/" in one.command), signal.SIGKILL)
    code, _, _ = end(mpirun)
    assert code != 0
    lab.ranks.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_mpirun_stops_the_run(lab: Lab, number: int) -> None:
    """Ctrl-C goes to the whole foreground group."""
    mpirun = begun(lab)
    os.killpg(mpirun.pid, number)
    code, _, _ = end(mpirun)
    assert code != 0
    assert state(lab) == "stopped"


def test_a_killed_mpirun_stops_the_run(lab: Lab) -> None:
    mpirun = begun(lab)
    mpirun.kill()
    mpirun.communicate()
    assert state(lab) == "stopped"


def test_a_killed_rank_stops_the_run(lab: Lab) -> None:
    mpirun = begun(lab)
    fronts = [one for one in lab.ranks.processes() if "clusterctl" in one.command and "python train.py" in one.command]
    os.kill(fronts[0].pid, signal.SIGKILL)
    code, _, _ = end(mpirun)
    assert code != 0
    assert state(lab) == "stopped"


def test_mpirun_interrupted_while_ranks_gather_leaves_nothing(lab: Lab) -> None:
    lab.ranks.train(OBEYS)
    mpirun = lab.train()
    assert wait_until(lambda: any((lab.directory / "clusterctl-jobs").glob("ranks/*/rank-*.json")))
    os.killpg(mpirun.pid, signal.SIGINT)
    code, _, _ = end(mpirun)
    assert code != 0
    lab.ranks.assert_nothing_left()


def test_mpirun_killed_while_the_run_starts_leaves_nothing(lab: Lab) -> None:
    lab.ranks.train(OBEYS)
    mpirun = lab.train()
    assert wait_until(lambda: any((lab.directory / "clusterctl-jobs").glob("node*/JOB*/.clusterctl/lock")))
    mpirun.kill()
    mpirun.communicate()
    lab.ranks.assert_nothing_left()


def test_a_directory_that_not_all_nodes_share_is_named(lab: Lab) -> None:
    """One rank gets another one, as a machine with a /data of its own would."""
    lab.ranks.train(OBEYS)
    (lab.directory / "own").mkdir()
    own = 'if [ "$OMPI_COMM_WORLD_RANK" = 6 ]; then set -- --shared own "$@"; fi; exec clusterctl-rank "$@"'
    code, _, err = end(lab.begin("sh", "-c", own, "sh", "python", "train.py"))
    assert code == 1
    assert re.search(r"rank 0 made no \S+/own/clusterctl-jobs/ranks/\S+ within 30 s", err)
    assert "clusterctl-rank --shared DIR" in err


def test_another_directory_may_be_shared(lab: Lab, tmp_path: Path) -> None:
    lab.ranks.train(SHOW)
    code, _, err = end(lab.train("--shared", str(tmp_path), np=2))
    assert code == 0, err
    assert len(list(tmp_path.glob("clusterctl-jobs/node*/JOB*/output"))) == 1
    assert not (lab.directory / "clusterctl-jobs").exists()


def test_two_runs_of_one_directory_do_not_disturb_each_other(lab: Lab) -> None:
    lab.ranks.train(SHOW)
    both = [lab.train(np=4), lab.train(np=2)]
    assert [end(one)[0] for one in both] == [0, 0]
    assert len({job.name for job in lab.ranks.jobs()}) == 2
