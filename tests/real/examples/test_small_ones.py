"""The examples that need no packages: an MPI-like program, and the old launcher's files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from real.examples.programs import copy, losses, newest_job
from support.site import Site

pytestmark = pytest.mark.slow


def test_each_rank_finds_its_place_in_the_variables_of_open_mpi(site: Site) -> None:
    directory = copy(site, "mpi_style", 3)
    site.ok("start", "--job_dispatch_package", str(directory / "workspace"))
    job = newest_job(site)
    logs = site.ok("logs", job).out
    for rank in range(3):
        every = losses(logs, f"rank {rank}")
        assert len(every) == 5
        assert every[-1] < every[0] / 10
    site.ok("collect", job, "-o", str(site.directory / "result"))
    models = sorted(site.directory.glob("result/node-*/output/model-*.txt"))
    assert [model.name for model in models] == ["model-00000.txt", "model-00001.txt", "model-00002.txt"]
    slope, offset = map(float, models[0].read_text().split())
    assert abs(slope - 3) < 0.1
    assert abs(offset + 1) < 0.1


def test_the_old_conf_py_and_run_sh_work_as_they_were_written(site: Site) -> None:
    directory = copy(site, "old_launcher", 2, ROOT_DIR="~/clusterctl", PADDLE_NIC="lo")
    ran = run_sh(site, directory)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    job = newest_job(site)
    logs = site.ok("logs", job, "--role=trainer").out
    for trainer in range(2):
        facts = next(line for line in logs.splitlines() if f"trainer {trainer} of 2: " in line)
        assert "'num_passes': 5, 'log_period': 50, 'dot_period': 10, 'trainer_count': 2, 'use_gpu': 0" in facts
        assert "'config': './trainer_config.py'" in facts
    assert logs.count("..... batch 1000: cost ") == 2
    costs = [float(cost) for cost in re.findall(r"pass \d: cost ([\d.]+)", logs)]
    assert len(costs) == 10
    assert costs[-1] < costs[0] / 5
    environment = site.ok("start", "--job_dispatch_package", str(directory / "workspace"), "--plan", "--json").json()
    assert {process["env"]["PADDLE_INIT_PORTS_NUM_FOR_SPARSE"] for process in environment["processes"]} == {"2"}


def run_sh(site: Site, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run run.sh as its user does: in its directory, with `clusterctl` in the PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    env = {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    cache = str(site.nodes_directory / "cache")
    return subprocess.run(
        ["sh", "run.sh"],
        cwd=directory,
        env={**env, "XDG_CACHE_HOME": cache},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
