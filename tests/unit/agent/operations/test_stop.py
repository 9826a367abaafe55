"""Stopping a job on one node, no matter which process holds it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.agent.node.job_processes import ENTRY
from clusterctl.agent.node.jobs import is_free
from clusterctl.agent.operations import stop
from clusterctl.agent.peer import Peer
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import run_environment
from support.processes import wait_for_environment
from unit.agent.specs import spec_json

HOLD = """
import pathlib, sys, time
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import run_environment
from clusterctl.agent.operations.start import JobLock
with JobLock(JobPaths(pathlib.Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_start_that_holds_the_job_for_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its control machine has vanished: there is a lock, but no run and no supervisor to notify."""
    monkeypatch.setattr(stop, "START_S", 0.2)
    job = JobPaths(tmp_path / "JOB20261121-081530")
    job.meta.mkdir(parents=True)
    write_json(job.record, {"job": job.dir.name})
    with subprocess.Popen([sys.executable, "-c", HOLD, str(job.dir)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            assert not is_free(job)
            with Path(os.devnull).open("wb") as nobody:
                done = stop.stop(tmp_path, {"ref": job.dir.name}, Peer(-1, nobody.fileno()))
            assert holder.wait(timeout=180) == -signal.SIGTERM
        finally:
            holder.kill()
    assert (done["was"], done["survivors"]) == ("dispatched", 0)
    assert is_free(job)


START = """
import pathlib, shutil, subprocess, sys, time
from clusterctl.agent.operations.start import JobLock
from clusterctl.common.paths import JobPaths
job = JobPaths(pathlib.Path(sys.argv[1]))
with JobLock(job):
    words = [sys.argv[2], "supervisor", job.dir]
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *words])
    print("up", flush=True)
    supervisor.wait()
    time.sleep(0.5)
    shutil.rmtree(job.run("0001").dir)
"""


def test_a_start_whose_supervisor_is_ended_undoes_its_run_first(tmp_path: Path) -> None:
    """Ctrl-C can come while the supervisor is not up yet: `start` then removes what `stop` would write to."""
    job = JobPaths(tmp_path / "JOB20261121-081530")
    run = job.run("0001")
    run.dir.mkdir(parents=True)
    run.spec.write_text("{}")
    write_json(job.record, {"job": job.dir.name})
    write_json(run.state, {"processes": [], "supervisor": (2**22 + 1, 1, "boot"), "ended": None, "phase": None})
    command = [sys.executable, "-c", START, str(job.dir), os.fsdecode(ENTRY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None
        try:
            assert starting.stdout.readline() == b"up\n"
            with Path(os.devnull).open("wb") as nobody:
                done = stop.stop(tmp_path, {"ref": job.dir.name}, Peer(-1, nobody.fileno()))
            assert not run.dir.exists()
            assert starting.wait(timeout=180) == 0
        finally:
            starting.kill()
    assert (done["run"], done["survivors"]) == ("0001", 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"node": 0, "grace_s": "long"}'])
def test_a_job_with_a_damaged_spec_is_stopped(tmp_path: Path, text: str) -> None:
    job = JobPaths(tmp_path / "JOB20261121-081530")
    run = job.run("0001")
    run.dir.mkdir(parents=True)
    write_json(job.record, {"job": job.dir.name})
    run.spec.write_text(text)
    write_json(run.state, {"processes": [], "supervisor": (2**22 + 1, 1, "boot"), "ended": None, "phase": None})
    environment = {**os.environ, **run_environment(job.dir, run.run)}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        try:
            wait_for_environment(process.pid)
            with Path(os.devnull).open("wb") as nobody:
                done = stop.stop(tmp_path, {"ref": job.dir.name}, Peer(-1, nobody.fileno()))
            assert process.wait(timeout=180) == -signal.SIGTERM
        finally:
            process.kill()
    assert (done["run"], done["was"], done["leftovers"], done["survivors"]) == ("0001", "lost", 1, 0)
    assert read_json(run.state)["ended"]["state"] == "stopped"


@pytest.mark.parametrize("exiting", [(True, False), (False, True)], ids=["first look", "second look"])
def test_another_job_that_exits_while_its_port_is_looked_at_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exiting: tuple[bool, bool]
) -> None:
    """A process that exits loses its environment before its sockets."""
    job = JobPaths(tmp_path / "JOB20261121-081530")
    run = job.run("0001")
    run.dir.mkdir(parents=True)
    write_json(job.record, {"job": job.dir.name})
    looks = iter(exiting)
    monkeypatch.setattr(stop, "job_dir_of", lambda _: None if next(looks) else str(tmp_path / "JOB20261121-081531"))
    with socket.create_server(("127.0.0.1", 0)) as server, Path(os.devnull).open("wb") as nobody:
        held = {"role": "pserver", "ports": [server.getsockname()[1]], "state": "stopped"}
        ended = {"state": "stopped", "reason": "", "time": 0}
        write_json(
            run.state, {"processes": [held], "supervisor": (2**22 + 1, 1, "boot"), "ended": ended, "phase": None}
        )
        done = stop.stop(tmp_path, {"ref": job.dir.name}, Peer(-1, nobody.fileno()))
    assert done["ports_busy"] == []


def test_what_was_being_written_when_a_machine_lost_power_is_removed(tmp_path: Path) -> None:
    """Neither the supervisor nor its guardian could."""
    run = JobPaths(tmp_path / "JOB20261121-081530").run("0001")
    checkpoint = run.checkpoints / "step-000000020"
    whole, half = checkpoint / "pserver-00000.safetensors", checkpoint / ".pserver-00001.safetensors-x1y2"
    part = run.copies / "step-000000020/.pserver-00002.safetensors-part"
    for path in (whole, half, part):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    write_json(run.job.record, {"job": run.job.dir.name})
    write_json(run.spec, spec_json())
    write_json(run.state, {"processes": [], "supervisor": [999_999_999, 1, "an earlier boot"]})
    with Path(os.devnull).open("wb") as nobody:
        done = stop.stop(tmp_path, {"op": "stop", "ref": run.job.dir.name}, Peer(-1, nobody.fileno()))
    assert done["was"] == "lost"
    assert (whole.exists(), half.exists(), part.exists()) == (True, False, False)
