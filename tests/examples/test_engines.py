"""The examples for other engines, with their real packages."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from examples.programs import copy, losses, newest_job, set_up
from support.processes import processes_with_environment, wait_until
from support.site import Site

pytestmark = pytest.mark.engines


@pytest.fixture(params=["async", "geo"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def paddle(site: Site) -> Path:
    directory = copy(site, "paddle_ctr", 2)
    set_up(site, directory)
    return directory / "workspace"


@pytest.fixture
def torch(site: Site) -> Path:
    directory = copy(site, "torch_ddp", 3, ENV={"OMP_NUM_THREADS": "1"})  # all nodes share this machine
    set_up(site, directory)
    return directory / "workspace"


def test_a_click_through_model_learns_on_two_servers_and_two_trainers_with_paddle(
    site: Site, paddle: Path, mode: str
) -> None:
    result = site.ok("start", "--job_dispatch_package", str(paddle), "--", f"--mode={mode}", timeout_s=150)
    assert "succeeded" in result.out
    job = newest_job(site)
    processes = site.status(job)["processes"]
    assert sorted((p["role"], p["rank"]) for p in processes) == [
        ("pserver", 0),
        ("pserver", 1),
        ("trainer", 0),
        ("trainer", 1),
    ]
    assert {p["state"] for p in processes if p["role"] == "trainer"} == {"succeeded"}
    logs = site.ok("logs", job, "--role=trainer").out
    for trainer in range(2):
        every = losses(logs, f"trainer {trainer}")
        assert len(every) == 4
        assert every[-1] < every[0] - 0.05
    site.assert_nothing_left(job)


def test_torch_ranks_train_together_and_end_with_the_same_parameters(site: Site, torch: Path) -> None:
    site.ok("start", "--job_dispatch_package", str(torch), timeout_s=150)
    job = newest_job(site)
    logs = site.ok("logs", job).out
    every = [losses(logs, f"rank {rank}") for rank in range(3)]
    assert every[0] == every[1] == every[2]
    assert every[0][-1] < every[0][0] / 3
    digests = re.findall(r"rank (\d): parameters (\w+)", logs)
    assert {rank for rank, _ in digests} == {"0", "1", "2"}
    assert len({digest for _, digest in digests}) == 1
    site.assert_nothing_left(job)


def test_a_killed_torch_rank_fails_the_run_everywhere_and_is_named(site: Site, torch: Path) -> None:
    job = site.ok("dispatch", str(torch), "--json").json()["job"]
    log = site.job_dir(job, 1) / "log/train.log"
    attached = site.popen("start", "--job_workspace", job, "--", "--num_passes=100000")
    try:
        assert wait_until(lambda: log.is_file() and "pass 1: " in log.read_text(), 90)
        os.kill(the_program(site, job, 1), signal.SIGKILL)
        _, err = attached.communicate(timeout=60)
    finally:
        attached.kill()
    assert attached.returncode == 1, err
    assert "first cause: trainer1@node1" in err
    assert "signal 9" in err
    assert "nothing is left running on 3/3 nodes" in err
    status = site.status(job)
    assert status["state"] == "failed"
    site.assert_nothing_left(job)


def the_program(site: Site, job: str, node: int) -> int:
    """Return the process id of the training program on a node."""
    processes = processes_with_environment("CLUSTERCTL_JOB_DIR", str(site.job_dir(job, node)))
    pids = [proc.pid for proc in processes if "train.py" in proc.command and "/agent/" not in proc.command]
    assert len(pids) == 1, processes
    return pids[0]
