"""kill -9 of supervisors and guardians: no process outlives its supervisor, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.e2e.programs import DEAF, SLEEP
from support.processes import is_alive, wait_until
from support.site import Site, agent_processes

pytestmark = pytest.mark.nodes(2)

NOT_FORKED = (sys.executable, "-P", "-m", "clusterctl")  # forks of the tests have a socket from the beginning


def test_a_dead_lead_stops_the_run_everywhere_and_an_attached_start_reports_it(site: Site) -> None:
    site.conf(ENGINE="none")
    with site.popen("start", "--job_dispatch_package", str(site.workspace(SLEEP))) as starting:
        job = up(starting)
        os.kill(site.supervisor(job, 0), signal.SIGKILL)
        _, err = starting.communicate(timeout=180)
    assert starting.returncode == 1
    assert "lost" in err
    site.assert_nothing_left(job)
    assert site.status(job)["state"] == "lost"
    assert site.ok("stop", job, "--json").json()["survivors"] == 0
    assert site.status(job)["state"] == "stopped"


def up(starting: subprocess.Popen[str]) -> str:
    """Read the output of a start until all processes are running; return the job."""
    assert starting.stdout is not None
    began = next(line for line in starting.stdout if "supervisors are up" in line)
    next(line for line in starting.stdout if "all processes are running" in line)
    return Path(began.split()[0]).name


@pytest.mark.slow
def test_a_detached_start_ends_when_the_lead_is_lost_before_all_processes_are_running(site: Site) -> None:
    """The pservers never listen. A detached start follows the lead's node, and the others only now."""
    site.conf(ENGINE="tensorflow", PSERVER_COMMAND="python train.py")
    job = site.dispatch(SLEEP)
    with site.popen("start", "--detach", "--job_workspace", job) as starting:
        assert starting.stdout is not None
        assert any("supervisors are up" in line for line in starting.stdout)
        os.kill(site.supervisor(job, 0), signal.SIGKILL)
        _, err = starting.communicate(timeout=180)
    assert starting.returncode == 1
    assert "lost" in err
    site.assert_nothing_left(job)


@pytest.mark.nodes(1)
def test_a_dead_guardian_is_replaced_and_both_are_small(site: Site) -> None:
    """Supervisor and guardian of a node take under 30 MB, with the pages they share counted once."""
    site.conf(ENGINE="none")
    job = site.start(SLEEP)
    supervisor, first = site.agents(job, 0)
    taken_kb = memory_kb(supervisor, "Rss") + memory_kb(first, "Private_Clean", "Private_Dirty")
    assert 0 < taken_kb < 30_000

    def guardian() -> int:
        pids = [p.pid for p in agent_processes(str(site.job_dir(job, 0))) if " guardian " in p.command]
        return pids[0] if pids else 0

    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: guardian() not in (0, first))
    mine = [p["pid"] for p in site.status(job)["processes"]]
    os.kill(supervisor, signal.SIGKILL)
    assert wait_until(lambda: guardian() == 0 and not any(is_alive(pid) for pid in mine))
    assert mine
    site.assert_nothing_left(job)


@pytest.mark.nodes(1)
def test_any_number_of_ctrl_c_leaves_nothing_half_stopped(site: Site) -> None:
    site.conf(ENGINE="none")
    with site.popen("start", "--job_dispatch_package", str(site.workspace(DEAF))) as starting:
        job = up(starting)
        assert starting.stdout is not None
        assert starting.stderr is not None
        for _ in range(3):  # as fast as they come: none may hit what the one before has begun
            starting.send_signal(signal.SIGINT)
        assert any("stopping" in line for line in starting.stdout)
        for _ in range(2):
            starting.send_signal(signal.SIGINT)
            assert "still stopping" in starting.stderr.readline()
        starting.communicate(timeout=180)
    assert starting.returncode == 130
    assert site.status(job)["state"] == "stopped"
    site.assert_nothing_left(job)


def memory_kb(pid: int, *kinds: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in kinds)


def has_socket(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(str(fd.readlink()).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_ctrl_c_at_any_moment_of_a_start_leaves_no_process(site: Site) -> None:
    """Try five moments from the first connection to the running job."""
    job = site.dispatch(SLEEP)
    for moment in range(5):
        with site.popen("start", "--job_workspace", job, program=NOT_FORKED) as starting:
            assert wait_until(lambda: has_socket(starting.pid))
            time.sleep(0.2 * moment)  # no synchronisation: it must work at any moment
            starting.send_signal(signal.SIGINT)
            _, err = starting.communicate(timeout=180)
        assert starting.returncode == 130, err
        site.assert_nothing_left(job)
