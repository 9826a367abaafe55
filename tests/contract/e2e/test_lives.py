"""A job whose former life was on another machine of a shared disk: two lives never write one directory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.e2e.programs import SLEEP
from support.processes import is_alive, wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(1)
TRAIN = """
import os, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros

def reader(pass_, rng):
    while not os.path.exists("end"):
        time.sleep(0.01)
        yield 1

with connect() as ps:
    w = ps.dense("w", shape=(3, 1000), rule=SGD(0.1), init=zeros())
    for one in ps.steps(reader, passes=1):
        ps.push({w: np.ones((3, 1000), np.float32)}, samples=1)
"""
ELSEWHERE = '{"pid": 1, "ticks": 2, "boot": "another", "host": "n7"}'


def lock(site: Site, job: str) -> Path:
    return site.job_dir(job, 0) / ".clusterctl/lock"


def events(site: Site, job: str, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site.job_dir(job, 0) / f".clusterctl/runs/{run}/events.jsonl").open()]


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Processes that are stopped by a signal; they are continued at the end of the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


def test_the_lock_names_the_host(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    job = site.start(SLEEP)
    assert json.loads(lock(site, job).read_text())["host"] == os.uname().nodename
    site.ok("stop", job)


@pytest.mark.slow
def test_a_silent_life_elsewhere_is_waited_for_and_ends_itself_when_it_continues(
    site: Site, stopped: list[int]
) -> None:
    """A supervisor that cannot run stands for one on a machine that nobody reaches."""
    site.conf(NODE_GRACE_S=5, PSERVERS=1, TRAINERS=1, SAVE_EVERY=5)
    job = site.start(TRAIN)
    assert wait_until(lambda: any(event["event"] == "saved" for event in events(site, job, "0001")))
    supervisor = site.supervisor(job, 0)
    os.kill(supervisor, signal.SIGSTOP)
    stopped.append(supervisor)
    for process in site.status(job)["processes"]:  # on that machine they could live on
        os.kill(process["pid"], signal.SIGKILL)
    lock(site, job).write_text(ELSEWHERE)
    impatient = site.run("start", job, "--detach")
    assert impatient.code == 4
    assert f"{job} is in use on n7" in impatient.err

    done = site.ok("start", "--resume", job, "--detach", "--verbose")
    assert site.status(job)["run"] == "0002"
    first = next(event["t"] for event in events(site, job, "0002"))
    last = (site.job_dir(job, 0) / ".clusterctl/runs/0001/state.json").stat().st_mtime
    assert first - last >= 4, done.err
    os.kill(supervisor, signal.SIGCONT)
    assert wait_until(lambda: not is_alive(supervisor))
    messages = [event.get("message", "") for event in events(site, job, "0001")]
    assert any("another machine has taken this job over" in message for message in messages)
    assert site.status(job)["state"] == "running"
    (site.job_dir(job, 0) / "end").touch()
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")


@pytest.mark.slow
def test_the_wait_is_shown(site: Site) -> None:
    """A node whose former life has recorded no end, such as a machine that lost its power."""
    site.conf(NODE_GRACE_S=16, ENGINE="none", PSERVERS=0, TRAINERS=1)
    job = site.start(SLEEP)
    site.ok("stop", job)
    run = site.job_dir(job, 0) / ".clusterctl/runs/0001"
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "ended": None}))
    lock(site, job).write_text(ELSEWHERE)
    started = site.ok("start", job, "--detach")
    assert "node0 waiting for an earlier run on n7 to end" in started.out + started.err
    site.ok("stop", job)


@pytest.mark.slow
def test_a_life_elsewhere_that_goes_on_is_never_joined_by_another(site: Site) -> None:
    """Its signs are written here by the test."""
    site.conf(NODE_GRACE_S=2, ENGINE="none", PSERVERS=0, TRAINERS=1)
    job = site.start(SLEEP)
    site.ok("stop", job)
    run = site.job_dir(job, 0) / ".clusterctl/runs/0001"
    state = {**json.loads((run / "state.json").read_text()), "ended": None}
    lock(site, job).write_text(ELSEWHERE)
    with site.popen("start", job, "--detach") as starting:
        while starting.poll() is None:
            (run / "beside").write_text(json.dumps(state))
            (run / "beside").rename(run / "state.json")
            wait_until(lambda: starting.poll() is not None, 0.3)
        _, err = starting.communicate()
    assert starting.returncode == 4
    assert f"{job} is still running on n7 (run 1)" in err
    assert not (run.parent / "0002").exists()
