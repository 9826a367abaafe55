"""`clusterctl save`: a checkpoint now, in every mode that has any, and from which a run is resumed."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.paths import JobPaths
from contract.e2e.programs import SLEEP
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

# Trains until the file `end` exists, and prints the step at which each life began.
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
    began = False
    for one in ps.steps(reader, passes=1):
        if not began:
            print("began at step", ps.step, flush=True)
            began = True
        while os.path.exists("pause"):
            time.sleep(0.01)
        ps.push({w: np.ones((3, 1000), np.float32)}, samples=1)
"""
RARELY = {"PSERVERS": 2, "TRAINERS": 2, "SAVE_EVERY": "9000 s", "SAVE_MODEL_EVERY": None}


def touch(site: Site, job: str, name: str) -> None:
    for node in range(2):
        (site.job_dir(job, node) / name).touch()


def complete(site: Site, job: str, run: str = "0001") -> list[str]:
    place = site.job_dir(job, 0) / f".clusterctl/runs/{run}/checkpoints"
    return sorted(path.parent.name for path in place.glob("*/manifest.json"))


def steps(site: Site, job: str) -> list[int]:
    return [process.get("step") or 0 for process in site.status(job)["processes"] if process["role"] == "trainer"]


def train_past(site: Site, job: str, step: int) -> None:
    assert wait_until(lambda: min(steps(site, job), default=0) > step)


def started(site: Site, **settings: Any) -> str:
    site.conf(**{**RARELY, **settings})
    job = site.start(TRAIN)
    train_past(site, job, 3)
    return job


def ended(site: Site, job: str) -> None:
    touch(site, job, "end")
    site.wait_for_end(job)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_checkpoint_is_made_now_and_a_run_is_resumed_from_it(site: Site, mode: str) -> None:
    """In sync the trainers have to push for it. In async, the last checkpoint is as good if nobody has pushed since."""
    job = started(site, MODE=mode)
    assert complete(site, job) == []
    saved = site.ok("save", job, "--json").json()
    assert {name: saved[name] for name in ("job", "run")} == {"job": job, "run": "0001"}
    assert complete(site, job) == [saved["tag"]]
    assert saved["step"] > 3
    train_past(site, job, saved["step"])
    again = site.ok("save").out
    newest = complete(site, job)[-1]
    assert newest > saved["tag"]
    assert f"saved: checkpoint {newest} of {job} run 1 is complete" in again
    train_past(site, job, int(newest.rpartition("-")[2]))
    touch(site, job, "pause")
    late = site.run("save", job, "--timeout", "2", "--json")
    assert late.code == (3 if mode == "sync" else 0), late.out
    said = f"no checkpoint of {job} is complete after 2 s: it is still being made"
    assert (said in late.out) == (mode == "sync")
    for node in range(2):
        (site.job_dir(job, node) / "pause").unlink()
    if mode == "sync":
        assert wait_until(lambda: complete(site, job)[-1] > newest)
        step = site.ok("save", job, "--json").json()["step"]
        site.ok("stop", job)
        site.ok("start", "--resume", job, "--detach")
        logs = [site.job_dir(job, node) / "log/train.log" for node in range(2)]
        assert wait_until(lambda: all(f"began at step {step}\n" in log.read_text() for log in logs if log.exists()))
    touch(site, job, "end")
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    result = site.run("save", job, "--json")
    assert result.code == 4
    assert "is not training: it has ended (succeeded)" in result.json()["error"]["message"]


def test_what_cannot_be_saved_is_refused_with_the_reason(site: Site) -> None:
    def refusal(*arguments: str) -> tuple[int, str]:
        result = site.run("save", *arguments, "--json")
        return result.code, result.json()["error"]["message"]

    site.conf(**RARELY)
    job = site.dispatch(TRAIN)
    assert refusal(job) == (2, f"{job} was never started")
    site.conf(ENGINE="none", PSERVERS=0)
    other = site.start(SLEEP)
    code, message = refusal(other)
    assert (code, "makes no checkpoints: its ENGINE is none" in message) == (2, True)
    site.ok("stop", other)
    assert site.run("save", "no-such-run").code == 2
    assert site.run("save", job, "--timeout", "0").code == 2
    assert site.run("save", job, "--only", "node0").code == 2


def test_a_run_that_ends_meanwhile_is_reported_as_over(site: Site) -> None:
    job = started(site)
    touch(site, job, "pause")
    with site.popen("save", job, "--json") as saving:
        door = JobPaths(site.job_dir(job, 0)).run("0001").door[1:]
        assert wait_until(lambda: Path("/proc/net/unix").read_text().count(door) == 2), "it is not connected"
        site.ok("stop", job)
        out, err = saving.communicate(timeout=60)
    assert saving.returncode == 4, out + err
    assert "is not training" in json.loads(out)["error"]["message"]


def test_a_lead_that_has_no_door_takes_no_requests_and_one_that_was_killed_is_lost(site: Site) -> None:
    """The name of the door is taken by another program here, so that the supervisor has none."""
    site.conf(**RARELY)
    job = site.dispatch(TRAIN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        run = JobPaths(site.job_dir(job, 0)).run("0001")
        taken.bind(run.door)  # but it does not listen
        site.ok("start", job, "--detach")
        result = site.run("save", job, "--json")
    assert result.code == 3
    assert f"the lead of {job} takes no requests" in result.json()["error"]["message"]
    os.kill(site.supervisor(job, 0), signal.SIGKILL)
    result = site.run("save", job, "--json")
    assert result.code == 4, result.err
    assert "is not training: it is lost" in result.json()["error"]["message"]
    site.ok("stop", job)


def test_one_command_begins_a_job_and_continues_it(site: Site) -> None:
    """As in the script of a job that Slurm queues again; before and after the first checkpoint."""
    site.conf(**RARELY)
    again = ("start", "--job_dispatch_package", str(site.workspace(TRAIN)), "--name", "slurm-7", "--resume", "--detach")
    job = site.ok(*again, "--json").json()["job"]
    assert wait_until(lambda: min(steps(site, job), default=0) > 3)
    site.ok("stop", "slurm-7")
    second = site.ok(*again, "--json").json()
    assert "resumed" not in second, "there was no checkpoint yet"
    job = second["job"]
    assert wait_until(lambda: min(steps(site, job), default=0) > 3)
    tag = site.ok("save", "slurm-7", "--json").json()["tag"]
    site.ok("stop", "slurm-7")
    third = site.ok(*again, "--json").json()
    assert (third["job"], third["resumed"]["tag"], third["name"]) == (job, tag, "slurm-7")
    touch(site, job, "end")
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    site.assert_nothing_left(job)
