"""kill -9 of supervisors and guardians: no process outlives its supervisor, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from e2e.programs import DEAF, REGRESSION, SLEEP
from support.processes import is_alive, wait_until
from support.site import Site, agent_processes

pytestmark = pytest.mark.nodes(2)

NOT_FORKED = (sys.executable, "-P", "-m", "clusterctl")  # forks of the tests have a socket from the beginning


@pytest.mark.slow
@pytest.mark.nodes(3)
def test_the_processes_of_a_dead_supervisor_die_with_it_and_the_run_fails(site: Site) -> None:
    job = site.start(SLEEP)
    mine = [p["pid"] for p in site.status(job)["processes"] if p["node"] == 2]
    with site.popen("logs", "-f", job) as following:
        os.kill(site.supervisor(job, 2), signal.SIGKILL)
        assert wait_until(lambda: not any(is_alive(pid) for pid in mine))
        _, err = following.communicate(timeout=180)
    assert following.returncode == 1, err
    status = site.status(job)
    assert status["state"] == "failed"
    assert {p["state"] for p in status["processes"] if p["node"] == 2} == {"lost"}
    site.assert_nothing_left(job)


@pytest.mark.parametrize("any_site", ["openssh"], indirect=True)
def test_a_dead_lead_stops_the_run_everywhere(any_site: Site) -> None:
    site = any_site
    job = site.start(SLEEP)
    os.kill(site.supervisor(job, 0), signal.SIGKILL)
    site.assert_nothing_left(job)
    assert site.status(job)["state"] == "lost"
    assert site.ok("stop", job, "--json").json()["survivors"] == 0
    assert site.status(job)["state"] == "stopped"


def test_an_attached_start_reports_that_the_lead_was_lost(site: Site) -> None:
    site.conf(ENGINE="none")
    package = site.workspace(SLEEP)
    with site.popen("start", "--job_dispatch_package", str(package)) as starting:
        assert starting.stdout is not None
        for line in starting.stdout:
            if "all processes are running" in line:
                break
        job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
        os.kill(site.supervisor(job, 0), signal.SIGKILL)
        _, err = starting.communicate(timeout=180)
    assert starting.returncode == 1
    assert "lost" in err
    site.assert_nothing_left(job)


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


@pytest.mark.slow
def test_when_every_supervisor_dies_nothing_is_left_and_the_state_is_lost(site: Site) -> None:
    job = site.start(REGRESSION, "--num_passes=1000000")
    for node in range(len(site.hosts)):
        os.kill(site.supervisor(job, node), signal.SIGKILL)
    site.assert_nothing_left(job)
    assert site.status(job)["state"] == "lost"
    restarted = site.run("start", "--job_workspace", job, "--detach", "--json")
    assert restarted.code == 0, restarted.err
    assert restarted.json()["run"] == "0002"
    site.ok("stop", job)


def test_a_dead_guardian_is_replaced(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(SLEEP)

    def guardian() -> int:
        pids = [p.pid for p in agent_processes(str(site.job_dir(job, 1))) if " guardian " in p.command]
        return pids[0] if pids else 0

    supervisor, first = site.agents(job, 1)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: guardian() not in (0, first))
    mine = [p["pid"] for p in site.status(job)["processes"] if p["node"] == 1]
    os.kill(supervisor, signal.SIGKILL)
    assert wait_until(lambda: guardian() == 0 and not any(is_alive(pid) for pid in mine))
    assert mine
    site.assert_nothing_left(job)


def test_a_stopped_node_is_suspected_and_the_run_continues_when_it_wakes(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(SLEEP)
    supervisor = site.supervisor(job, 1)
    events = site.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
    os.kill(supervisor, signal.SIGSTOP)
    assert wait_until(lambda: '"suspect"' in events.read_text())
    os.kill(supervisor, signal.SIGCONT)
    assert wait_until(lambda: '"rejoined"' in events.read_text())
    assert site.status(job)["state"] == "running"
    site.ok("stop", job)


def test_a_node_silent_for_longer_than_the_grace_period_fails_the_run(site: Site) -> None:
    site.conf(ENGINE="none", NODE_GRACE_S=4)
    job = site.start(SLEEP)
    supervisor = site.supervisor(job, 1)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        assert wait_until(lambda: site.has_ended(job))
        assert site.status(job)["state"] == "failed"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    site.assert_nothing_left(job)


@pytest.mark.parametrize("presses", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_any_number_of_ctrl_c_leaves_nothing_half_stopped(site: Site, presses: int) -> None:
    site.conf(ENGINE="none")
    with site.popen("start", "--job_dispatch_package", str(site.workspace(DEAF))) as starting:
        assert starting.stdout is not None
        for line in starting.stdout:
            if "all processes are running" in line:
                break
        assert starting.stderr is not None
        for _ in range(presses):  # as fast as they come: none may hit what the one before has begun
            starting.send_signal(signal.SIGINT)
        assert any("stopping" in line for line in starting.stdout)
        for _ in range(presses - 1):
            starting.send_signal(signal.SIGINT)
            assert "still stopping" in starting.stderr.readline()
        starting.communicate(timeout=180)
    assert starting.returncode == 130
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    assert site.status(job)["state"] == "stopped"
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_ctrl_c_while_sending_leaves_no_job_and_the_next_dispatch_resumes(site: Site) -> None:
    workspace = site.workspace("")
    (workspace / "big").write_bytes(os.urandom(200 << 20))
    before = {job["job"] for job in site.ok("jobs", "--json").json()["jobs"]}
    incoming = [site.home(node) / "clusterctl/.clusterctl/incoming" for node in range(len(site.hosts))]
    with site.popen("dispatch", str(workspace)) as sending:
        assert wait_until(lambda: all(arrived(place) > 1 << 20 for place in incoming))
        sending.send_signal(signal.SIGINT)
        sending.communicate(timeout=180)
    assert sending.returncode == 130
    assert {job["job"] for job in site.ok("jobs", "--json").json()["jobs"]} == before
    nodes = site.ok("dispatch", str(workspace), "--json").json()["nodes"]
    assert all(0 < node["bytes_received"] < (200 << 20) - (1 << 20) for node in nodes)
    assert all(Path(node["dir"], "big").stat().st_size == 200 << 20 for node in nodes)
    assert not any(list(place.iterdir()) for place in incoming)


def arrived(incoming: Path) -> int:
    """Return the number of bytes received of a partial large file."""
    return sum(path.stat().st_size for path in incoming.glob("*/torn-*"))


def test_leftovers_of_a_killed_dispatch_are_removed_by_the_next(site: Site) -> None:
    place = site.home(1) / "clusterctl/.clusterctl/incoming/JOB20200101-000000"
    place.mkdir(parents=True)
    (place / "lock").write_text("{}")
    (place / "tree").mkdir()
    site.dispatch("")
    assert not place.exists()


def test_supervisors_stay_small(site: Site) -> None:
    """Supervisor and guardian of a node take under 30 MB, with the pages they share counted once."""
    job = site.start(SLEEP)
    for node in range(len(site.hosts)):
        supervisor, guardian = site.agents(job, node)
        taken_kb = memory_kb(supervisor, "Rss") + memory_kb(guardian, "Private_Clean", "Private_Dirty")
        assert taken_kb < 30_000
    site.ok("stop", job)


def memory_kb(pid: int, *kinds: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in kinds)


def has_socket(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(str(fd.readlink()).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_a_start_leaves_no_process(site: Site) -> None:
    """Try eight moments from the first connection to the running job."""
    job = site.dispatch(SLEEP)
    for moment in range(8):
        with site.popen("start", "--job_workspace", job, program=NOT_FORKED) as starting:
            assert wait_until(lambda: has_socket(starting.pid))
            time.sleep(0.12 * moment)  # no synchronisation: it must work at any moment
            starting.send_signal(signal.SIGINT)
            _, err = starting.communicate(timeout=180)
        assert starting.returncode == 130, err
        site.assert_nothing_left(job)
