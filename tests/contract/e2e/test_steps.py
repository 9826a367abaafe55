"""Runs over a carrier whose command takes with it all that it has started: a step of Slurm under cgroups."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from support.processes import Proc, processes_below, wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

#: A step in the home of a node. On TERM everything in it gets TERM; what is left at its end is killed.
STEP = """#!{python}
import ctypes, os, signal, subprocess, sys
from pathlib import Path

def below(pid):
    for child in Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split():
        yield int(child)
        try:
            yield from below(child)
        except OSError:
            pass

def end(number, frame):
    for pid in list(below(os.getpid())):
        os.kill(pid, number)

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
signal.signal(signal.SIGTERM, end)
home = f"{nodes}/{{sys.argv[2]}}"
env = {{"HOME": home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}}
step = subprocess.Popen(sys.argv[3:], cwd="/", env=env)
code = step.wait()
try:
    while True:
        for pid in below(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        os.wait()
except ChildProcessError:
    sys.exit(128 - code if code < 0 else code)
"""


def use_steps(site: Site, **settings: Any) -> None:
    via = (str(site.directory / "srun"), "-u", "{host}")
    site.conf(HOSTS=["node0", "node1"], PYTHON=sys.executable, VIA=via, **settings)


@pytest.fixture(autouse=True)
def over_steps(site: Site) -> Iterator[None]:
    srun = site.directory / "srun"
    srun.write_text(STEP.format(python=sys.executable, nodes=site.home(0).parent))
    srun.chmod(0o755)
    use_steps(site)
    yield
    assert wait_until(lambda: not steps(site)), steps(site)


def steps(site: Site) -> list[Proc]:
    """Return the carriers that are there, which run in the directory of conf.py."""
    return [process for process in processes_below(site.directory) if "srun -u" in process.command]


def test_a_detached_run_keeps_one_step_on_each_node_until_it_has_ended(site: Site) -> None:
    job = site.start(REGRESSION, "--num_passes=2")
    site.wait_for_end(job)
    assert wait_until(lambda: not steps(site))
    assert site.status(job)["state"] == "succeeded"


def test_term_of_a_step_stops_the_run(site: Site) -> None:
    job = site.start(SLEEP)
    os.kill(min(process.pid for process in steps(site)), signal.SIGTERM)
    site.wait_for_end(job)
    assert site.status(job)["state"] == "stopped"


def test_an_attached_start_needs_two_steps_and_ends_with_the_run(site: Site) -> None:
    done = site.ok("start", str(site.workspace(REGRESSION)), "--", "--num_passes=2")
    assert "end of pass 1 on trainer 0" in done.out
