"""The examples for other engines, with their real packages."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from real.examples.programs import copy, losses, newest_job, set_up
from support.processes import kill_all, processes_with_environment, wait_until
from support.site import Site

pytestmark = pytest.mark.engines

UNTRAINED = math.log(2)  # the loss of a model that calls every click as likely as not

# The other trainers wait for rank 0 in the barrier. If it did not hold them, they would not find rank 0's file.
COLLECTIVES = """
import os, pathlib, time
import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
loss = paddle.static.nn.embedding(paddle.static.data("ids", [None, 1], "int64"), [100, 4], is_sparse=True).mean()
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    meet, rank, count = pathlib.Path(os.environ["MEET"]), fleet.worker_index(), fleet.worker_num()
    if rank == 0:
        while len(list(meet.iterdir())) < count - 1:
            time.sleep(0.05)
        time.sleep(1)
    (meet / str(rank)).touch()
    fleet.barrier_worker()
    arrived = sorted(path.name for path in meet.iterdir())
    total = fleet.util.all_reduce(np.array([rank + 1.0, 1.0]), "sum").tolist()
    print(f"rank {rank} of {count}: after {arrived}, sum {total}", flush=True)
    fleet.stop_worker()
"""


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
    result = site.ok("start", "--job_dispatch_package", str(paddle), "--", f"--mode={mode}", timeout_s=300)
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
        # The other trainer may have learnt before this one begins: the first pass is no measure.
        assert every[-1] < UNTRAINED - 0.1
    site.assert_nothing_left(job)


def test_paddles_collectives_are_the_same_as_under_its_own_launcher(site: Site, paddle: Path, tmp_path: Path) -> None:
    (paddle / "train.py").write_text(COLLECTIVES)
    environments = [tmp_path / name for name in ("ours", "theirs")]
    for directory in environments:
        directory.mkdir()
    with site.conf_path.open("a") as conf:
        conf.write(f"ENV = {{'MEET': {str(environments[0])!r}}}\n")
    site.ok("start", "--job_dispatch_package", str(paddle), timeout_s=300)
    job = newest_job(site)
    ours = collectives(site.ok("logs", job, "--role=trainer").out)
    site.assert_nothing_left(job)
    (python,) = site.home(0).glob("clusterctl/.clusterctl/venvs/*/bin/python")
    with paddles_launcher(python, paddle / "train.py", environments[1]) as logs:
        assert wait_until(lambda: len(collectives(logs())) == 2, 120), logs()
        assert ours == collectives(logs())
    assert ours == [f"rank {rank} of 2: after ['0', '1'], sum [3.0, 2.0]" for rank in range(2)]


def test_torch_ranks_train_together_and_end_with_the_same_parameters(site: Site, torch: Path) -> None:
    site.ok("start", "--job_dispatch_package", str(torch), timeout_s=300)
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
        assert wait_until(lambda: log.is_file() and "pass 1: " in log.read_text())
        os.kill(the_program(site, job, 1), signal.SIGKILL)
        _, err = attached.communicate(timeout=180)
    finally:
        attached.kill()
    assert attached.returncode == 1, err
    assert "first cause: trainer1@node1" in err
    assert "signal 9" in err
    assert "nothing is left running on 3/3 nodes" in err
    status = site.status(job)
    assert status["state"] == "failed"
    site.assert_nothing_left(job)


def collectives(output: str) -> list[str]:
    """Return what each rank of COLLECTIVES printed, by rank."""
    return sorted(re.findall(r"rank \d of \d: .*", output))


@contextlib.contextmanager
def paddles_launcher(python: Path, program: Path, meet: Path) -> Iterator[Callable[[], str]]:
    """Run a program under `paddle.distributed.launch`, whose servers never exit; yield the output of its trainers."""
    directory = meet.with_name("launched")
    directory.mkdir()
    command = [str(python), "-m", "paddle.distributed.launch", "--server_num=2", "--trainer_num=2", str(program)]
    env = {**os.environ, "MEET": str(meet)}
    with (directory / "launcher.log").open("w") as log:
        launcher = subprocess.Popen(command, cwd=directory, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield lambda: "".join(path.read_text() for path in sorted(directory.glob("log/workerlog.*")))
    finally:
        launcher.terminate()
        launcher.wait(180)
        kill_all(processes_with_environment("MEET", str(meet)))


def the_program(site: Site, job: str, node: int) -> int:
    """Return the process id of the training program on a node."""
    processes = processes_with_environment("CLUSTERCTL_JOB_DIR", str(site.job_dir(job, node)))
    pids = [proc.pid for proc in processes if "train.py" in proc.command and "/agent/" not in proc.command]
    assert len(pids) == 1, processes
    return pids[0]
