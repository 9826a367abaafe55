"""Who belongs to a job whose supervisor is gone, though it wrote over its own environment; and who does not."""

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

# Overwrites its environment, as programs do that set their title, and starts a child in a session of its own, and a
# grandchild whose parent is gone. They say their numbers.
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
    """A process of a run that wrote over its environment, its child, and one that is nobody's child any more."""
    environment = {**os.environ, **run_environment(job.dir, "0001")}
    command = [sys.executable, "-S", "-c", CLOBBERS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        kin = [identify(pid) for pid in pids]
        try:
            yield pids
        finally:
            end_all(lambda: [who for who in kin if who is not None and identify(who.pid) == who], 0.0)


def record(job: JobPaths, *whos: Identity | None) -> None:
    """As a supervisor does; one of its processes has not begun."""
    processes: list[dict[str, Any]] = [{"role": "trainer", "identity": who} for who in (*whos, None)]
    write_json(job.run("0001").state, {"processes": processes})


def test_who_wrote_over_its_environment_is_found_by_the_record_and_with_it_its_children_and_session(
    job: JobPaths, family: list[int]
) -> None:
    assert all(not any(entry.startswith(b"CLUSTERCTL") for entry in environment_of(pid)) for pid in family)
    record(job, identify(family[0]))
    assert sorted(who.pid for who in of_job(job.dir)) == sorted(family)
    assert sorted(who.pid for who in of_run(job.run("0001"))) == sorted(family)
    assert [who.pid for who in by_job(job.dir.parent)[job.dir.name]] == family[:1]
    assert end_all(lambda: of_job(job.dir), 10.0) == (3, 0, 0)


def test_who_got_a_recorded_number_later_is_not_of_the_job(job: JobPaths, family: list[int]) -> None:
    who = identify(family[0])
    assert who is not None
    record(job, Identity(who.pid, who.ticks - 1, who.boot))
    assert of_job(job.dir) == []
    assert by_job(job.dir.parent) == {}
