"""No process of a job is left, whatever its programs do and whatever was killed; no unrelated process is touched."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.e2e.programs import SLEEP
from support.openssh import free_port
from support.processes import assert_none_left, is_alive, wait_until
from support.site import Site, events_in

NODES = 3
pytestmark = [pytest.mark.nodes(NODES), pytest.mark.slow]
SLOW = pytest.mark.slow
# A process in its own session whose parent has exited. It writes its pid to a file and ignores TERM.
DAEMON = """
import os, signal, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"daemon-{os.environ['CLUSTERCTL_RANK']}", "w") as f:
        f.write(f"{os.getpid()}\\n")
    os.execvpe(sys.executable, [sys.executable, "-S", "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"], ENVIRONMENT)
os.wait()
while not os.path.exists(f"daemon-{os.environ['CLUSTERCTL_RANK']}"):
    time.sleep(0.01)
"""
KEEPS = DAEMON.replace("ENVIRONMENT", "os.environ") + SLEEP
CLEARS = DAEMON.replace("ENVIRONMENT", "{'CLUSTERCTL_TEST': os.environ['CLUSTERCTL_JOB']}") + SLEEP
FORKS = """
import os
for _ in range(50):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
"""
PAUSE = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def daemons(site: Site, job: str) -> list[int]:
    files = [site.job_dir(job, node) / f"daemon-{node}" for node in range(NODES)]
    assert wait_until(lambda: all(file.is_file() and file.read_text().endswith("\n") for file in files))
    return [int(file.read_text()) for file in files]


def kill_ours(site: Site, job: str, nodes: Sequence[int] = range(NODES)) -> None:
    """Kill supervisors and guardians with SIGKILL, stopped first so that neither notices the death of the other."""
    pids = [pid for node in nodes for pid in site.agents(job, node)]
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, signum)
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))


@contextlib.contextmanager
def running(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", PAUSE], env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def test_without_supervisor_and_guardian_stop_finds_and_ends_all_processes_but_no_others(
    site: Site, tmp_path: Path
) -> None:
    site.conf(ENGINE="none")
    job = site.start(KEEPS)
    pids = daemons(site, job)
    kill_ours(site, job)
    assert site.status(job)["state"] == "lost"
    elsewhere = {"CLUSTERCTL_JOB_DIR": str(tmp_path / "clusterctl" / job), "CLUSTERCTL_RUN": "0001"}
    likely = {"CLUSTERCTL_JOB_DIR": f"{site.job_dir(job, 0)}-2", "HOME": "/nowhere"}
    with running(**elsewhere) as other_root, running(**likely) as other_job, running(CLUSTERCTL_JOB=job) as no_mark:
        findings = site.ok("check", "--json").json()["findings"]
        (left,) = [finding for finding in findings if f" of {job} left by a dead supervisor" in finding["message"]]
        assert left["nodes"] == list(range(NODES))
        assert all(str(pid) in left["message"] for pid in pids)
        assert left["hint"] == f"clusterctl stop {job}"
        refused = site.run("start", "--detach", "--job_workspace", job)
        assert refused.code == 4, "a second generation beside the first"
        assert f"of {job} left by a dead supervisor" in refused.err
        assert f"clusterctl stop {job}" in refused.err
        assert all(is_alive(pid) for pid in pids)
        stopped = site.ok("stop", job)
        assert stopped.out.endswith(f"stopped: {NODES}/{NODES} nodes, 0 processes left, ports free\n")
        assert "needed KILL" in stopped.out
        assert not any(is_alive(pid) for pid in pids)
        assert [process.poll() for process in (other_root, other_job, no_mark)] == [None] * 3
    assert site.status(job)["state"] == "stopped"
    again = site.ok("check", "--json").json()["findings"]
    assert not [finding for finding in again if f" of {job} left by a dead supervisor" in finding["message"]]


def is_removed(directory: Path) -> bool:
    """Remove a directory and return True if it is gone; a supervisor may have written to it meanwhile."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def test_a_job_whose_directory_is_gone_can_still_be_stopped(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(KEEPS)
    pids = daemons(site, job)
    os.kill(site.supervisor(job, 1), signal.SIGSTOP)  # TERM ends it even so
    for node in (0, 1):
        assert wait_until(lambda: is_removed(site.job_dir(job, node)))  # noqa: B023
    stopped = site.ok("stop", job, "--json").json()
    assert [node["survivors"] for node in stopped["nodes"]] == [0] * NODES
    assert not any(is_alive(pid) for pid in pids)
    site.assert_nothing_left(job)
    again = site.run("stop", job)
    assert again.code == 3, again.out
    assert "there is no job" in again.err


def test_descendants_that_cleared_their_environment_end_with_the_run(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(CLEARS)
    pids = daemons(site, job)
    assert all(is_alive(pid) for pid in pids)
    with site.popen("stop", job) as other:  # at the same time
        assert "0 processes left, ports free" in site.ok("stop", job).out
        assert other.wait(180) == 0
    assert not any(is_alive(pid) for pid in pids)
    assert_none_left("CLUSTERCTL_TEST", job)


def test_orphans_of_a_run_leave_no_zombies(site: Site) -> None:
    site.conf(ENGINE="none", TRAINERS=1)
    job = site.start(FORKS + SLEEP)
    supervisor = site.supervisor(job, 0)

    def children() -> list[str]:
        return Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()

    assert wait_until(lambda: len(children()) == 2), children()  # the trainer and the guardian
    (trainer,) = [process["pid"] for process in site.status(job)["processes"]]
    os.kill(trainer, signal.SIGSTOP)
    assert "KILL was needed" not in site.ok("stop", job).out, "it is continued so that TERM can end it"


def test_stop_does_not_report_a_busy_port_as_free(site: Site) -> None:
    """The port of a pserver was taken by an unknown program; by one of another job would be fine."""
    site.conf(PSERVERS=1, TRAINERS=1, PORT=min(free_port(), 64_000))  # far from the ports of other tests
    job = site.start(SLEEP)
    (ports,) = re.findall(r"ready on port ([\d, ]+)", site.ok("logs", job, "--role", "pserver").out)
    *_, port = map(int, ports.split(", "))  # the port of its last lane
    kill_ours(site, job)
    server = wait_for_port(port)  # our pserver exits on its own
    with server:
        stopped = site.run("stop", job, "--json")
        assert stopped.code == 3
        assert (stopped.json()["survivors"], stopped.json()["nodes"][0]["ports_busy"]) == (0, [port])
        assert f"port {port} is in use by pid {os.getpid()}" in stopped.json()["error"]["message"]
        again = site.ok("stop", job).out  # a former port in use by others is reported but is not an error
        assert "0 processes left\n" in again
        assert f"port {port} is in use by pid {os.getpid()}" in again
    assert "0 processes left, ports free\n" in site.ok("stop", job).out


def wait_for_port(port: int) -> socket.socket:
    servers: list[socket.socket] = []

    def take() -> bool:
        with contextlib.suppress(OSError):
            servers.append(socket.create_server(("127.0.0.1", port)))
        return bool(servers)

    assert wait_until(take)
    return servers[0]


def events_of(site: Site, job: str, node: int) -> list[dict[str, Any]]:
    return events_in(site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl")


@pytest.mark.parametrize(
    "victim", ["supervisor", *(pytest.param(v, marks=SLOW) for v in ("pserver", "supervisor and guardian"))]
)
def test_the_death_of_any_process_is_known_on_all_nodes_long_before_the_grace_period_ends(
    site: Site, victim: str
) -> None:
    """NODE_GRACE_S is ten minutes; the guardian reports the death, or else the kernel refuses connections."""
    site.conf(RESTARTS=0, NODE_GRACE_S=600, ON_NODE_LOSS="fail")
    job = site.start(SLEEP)
    at = {(process["role"], process["node"]): process["pid"] for process in site.status(job)["processes"]}
    if victim == "supervisor and guardian":
        kill_ours(site, job, [2])
    else:
        os.kill(site.supervisor(job, 2) if victim == "supervisor" else at[victim, 2], signal.SIGKILL)
    for node in (0, 1):
        assert wait_until(lambda: any(event["event"] == "ended" for event in events_of(site, job, node)))  # noqa: B023
    (stopping,) = [event for event in events_of(site, job, 0) if event.get("phase") == "stopping"]
    kind = "node_lost" if victim.startswith("supervisor") else "exit"
    assert (stopping["cause"]["kind"], stopping["cause"]["node"]) == (kind, 2)
    site.ok("stop", job)
    site.assert_nothing_left(job)
