"""Finding the processes of a job whose supervisor is gone, even if they overwrote their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.job_processes import by_job, of_job, of_run
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import Identity, end_all, environment_of, identify, run_environment

# Overwrites its environment, as programs do that set their title. Starts a child in its own session, and a
# grandchild whose parent is gone. Prints their process ids.
CLOBBERS = """
import ctypes, os, signal, time
begin, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(begin, 0, end - begin)
def fork(also=lambda: None):
    if (pid := os.fork()) == 0:
        also()
        signal.pause()
        os._exit(0)
    return pid
read, write = os.pipe()
apart = fork(os.setsid)
if os.fork() == 0:
    os.write(write, b"%d" % fork())
    os._exit(0)
os.wait()
print(os.getpid(), apart, int(os.read(read, 9)), flush=True)
signal.pause()
"""


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    job = JobPaths(tmp_path / "JOB20261121-081530")
    job.run("0001").dir.mkdir(parents=True)
    write_json(job.record, {"job": job.dir.name})
    return job


@pytest.fixture
def family(job: JobPaths) -> Iterator[list[int]]:
    """A process of a run that overwrote its environment, its child, and an orphaned descendant."""
    environment = {**os.environ, **run_environment(job.dir, "0001")}
    command = [sys.executable, "-S", "-c", CLOBBERS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        kin = [identify(pid) for pid in pids]
        try:
            yield pids
        finally:
            end_all(
                lambda: [identity for identity in kin if identity is not None and identify(identity.pid) == identity],
                0.0,
            )


def record(job: JobPaths, *identities: Identity | None) -> None:
    """Write the record as a supervisor does; one of the processes has not started."""
    processes: list[dict[str, Any]] = [{"role": "trainer", "identity": identity} for identity in (*identities, None)]
    write_json(job.run("0001").state, {"processes": processes})


def test_a_process_that_overwrote_its_environment_is_found_by_the_record_with_its_children_and_session(
    job: JobPaths, family: list[int]
) -> None:
    assert all(b"CLUSTERCTL" not in environment_of(pid) for pid in family)
    record(job, identify(family[0]))
    assert sorted(process.pid for process in of_job(job.dir)) == sorted(family)
    assert sorted(process.pid for process in of_run(job.run("0001"))) == sorted(family)
    assert [process.pid for process in by_job(job.dir.parent)[job.dir.name]] == family[:1]
    assert end_all(lambda: of_job(job.dir), 60.0) == (3, 0, 0)


def test_a_process_that_reuses_a_recorded_pid_is_not_part_of_the_job(job: JobPaths, family: list[int]) -> None:
    identity = identify(family[0])
    assert identity is not None
    record(job, Identity(identity.pid, identity.ticks - 1, identity.boot))
    assert of_job(job.dir) == []
    assert by_job(job.dir.parent) == {}
