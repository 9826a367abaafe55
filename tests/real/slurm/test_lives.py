"""A job that Slurm queues again: its next life resumes, on other nodes if need be, and never beside the former one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real.slurm.lab import SLURMD_TIMEOUT_S, Lab, wait_until
from real.slurm.site import SlurmSite
from support.processes import is_alive, processes_with_environment

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
NODES = 2
LIFE_S = 120.0  # until the next life trains

# Trains until the file `end` exists. The file `at-RANK` has the trainer's step.
TRAIN = """
import os, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros

def reader(pass_, rng):
    while not os.path.exists("end"):
        time.sleep(0.05)
        yield 1

with connect() as ps:
    w = ps.dense("w", shape=(3, 1000), rule=SGD(0.1), init=zeros())
    began = None
    for one in ps.steps(reader, passes=1):
        if began is None:
            began = ps.step
            print("began at step", began, flush=True)
        with open(f".at-{ps.rank}", "w") as file:
            file.write(str(ps.step))
        os.replace(f".at-{ps.rank}", f"at-{ps.rank}")
        ps.push({w: np.ones((3, 1000), np.float32)}, samples=1)
"""


class Job:
    """A submitted job for two nodes, or more, that may be queued again, and its run."""

    def __init__(self, lab: Lab, directory: Path, nodes: int = NODES, **settings: Any) -> None:
        self.lab, self.nodes = lab, nodes
        self.site = SlurmSite(lab, directory, None, nodes)
        run = {
            "PSERVERS": nodes,
            "TRAINERS": nodes,
            "SAVE_MODEL_EVERY": None,
            "NODE_GRACE_S": 5,
            "SBATCH": ["--mem=900"],
        }
        self.site.conf(**run, **settings)
        options = ("--nodes", str(nodes), "--time", "1:00:00", "--requeue", "--json")
        self.id: str = self.site.ok("submit", str(self.site.workspace(TRAIN)), *options).json()["id"]

    @property
    def output(self) -> str:
        path = self.site.directory / f"slurm-{self.id}.out"
        return path.read_text() if path.exists() else "(nothing)"

    @property
    def directories(self) -> list[Path]:
        """The directories of the newest job: before the first checkpoint, the next life is a job of its own."""
        found = list(self.site.nodes_directory.glob("node*/JOB*"))
        newest = max((place.name for place in found), default="")
        return sorted(place for place in found if place.name == newest)

    def trains(self, beyond: int = 3) -> None:
        """Wait until all trainers have made so many steps."""

        def steps() -> list[int]:
            return [int(path.read_text()) for place in self.directories for path in place.glob("at-*")]

        assert wait_until(lambda: len(steps()) == self.nodes and min(steps()) > beyond, LIFE_S), self.output

    def notice(self) -> None:
        """Send what Slurm sends before the time limit."""
        self.lab.output("scancel", "--batch", "--signal=USR1", self.id)

    def checkpoint(self, run: str) -> int:
        """Return the step of the newest checkpoint that a run has recorded as complete."""
        lines = (self.directories[0] / f".clusterctl/runs/{run}/events.jsonl").read_text().splitlines()
        saved = [event for event in map(json.loads, lines) if event["event"] == "saved" and event.get("complete")]
        return max(event["step"] for event in saved if event.get("checkpoint"))

    def began(self, run: str) -> int | None:
        """Return the step at which all trainers of the newest run began; None if it is another one."""
        if not self.directories or not all((place / f".clusterctl/runs/{run}").is_dir() for place in self.directories):
            return None
        logs = [place / "log/train.log" for place in self.directories]
        found = {re.search(r"began at step (\d+)", log.read_text()) for log in logs if log.exists()}
        steps = {int(match[1]) for match in found if match}
        return steps.pop() if len(found) == self.nodes and None not in found and len(steps) == 1 else None

    def resumes(self, run: str = "0002") -> int:
        """Wait until the next life trains, and return the step at which it began."""
        assert wait_until(lambda: self.began(run) is not None, LIFE_S), self.output
        return self.began(run) or 0

    def succeeds(self) -> None:
        for place in self.directories:
            (place / "end").touch()
        self.lab.wait_for(self.id, "COMPLETED", deadline_s=LIFE_S)
        assert "succeeded after" in self.output
        for place in self.directories:
            assert wait_until(lambda place=place: not processes_with_environment("CLUSTERCTL_JOB_DIR", str(place)))

    def restarts(self) -> int:
        return int(self.lab.output("squeue", "-h", "-t", "all", "-j", self.id, "-O", "RestartCnt"))


@pytest.fixture
def leftovers() -> Iterator[list[int]]:
    """Processes of the former life; none of them outlives the test."""
    made: list[int] = []
    yield made
    assert [pid for pid in made if is_alive(pid)] == []


def test_before_its_time_limit_a_job_saves_and_resumes_on_other_nodes(cgroup_lab: Lab, tmp_path: Path) -> None:
    """The notice is Slurm's own: within 30 s it sees that the end is near. The login node sees all of both lives."""
    job, lab = Job(cgroup_lab, tmp_path), cgroup_lab
    job.trains()
    before = lab.nodes_of(job.id)
    for node in before:  # which leaves the job alone
        lab.output("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    lab.output("scontrol", "update", f"jobid={job.id}", "endtime=now+110")
    lab.wait_for(job.id, "PENDING", deadline_s=LIFE_S)
    lab.output("scontrol", "update", f"jobid={job.id}", "timelimit=60")  # the next life is as short otherwise
    status = job.site.status(job.id)
    assert (status["state"], status["scheduler"]["stage"]) == ("stopped", "queued"), job.output
    began = job.resumes()
    assert began == job.checkpoint("0001") > 3
    assert set(lab.nodes_of(job.id)).isdisjoint(before)
    assert job.restarts() == 1
    assert f"saved: checkpoint step-{began:09d}" in job.output
    assert "DUE TO JOB REQUEUE" in job.output
    assert wait_until(lambda: job.site.status(job.id)["state"] == "running")
    status = job.site.status(job.id)
    assert (status["state"], status["run"], status["name"]) == ("running", "0002", f"slurm-{job.id}")
    assert status["resumed"]["step"] == began
    assert {node["host"] for node in status["nodes"]} == set(lab.nodes_of(job.id))
    assert "nothing has failed" in job.site.ok("why", job.id).out
    saved = job.site.ok("save", job.id, "--json").json()
    assert (saved["run"], saved["step"] >= began) == ("0002", True)
    job.succeeds()
    assert f"resumed from step {began:,} of run 1" in job.site.ok("status", job.id).out
    assert job.site.ok("why", f"{job.directories[0].name}/1").code == 0
    assert f"began at step {began}" in job.site.ok("logs", job.id).out


def test_a_job_that_is_preempted_resumes_from_its_newest_checkpoint(lab: Lab, tmp_path: Path) -> None:
    """Slurm sends no notice then."""
    job = Job(lab, tmp_path, SAVE_EVERY=20)
    job.trains(beyond=45)
    urgent = lab.submit("sleep 2", "-p", "urgent", "-N4", "--exclusive")
    lab.wait_for(urgent, "COMPLETED", deadline_s=LIFE_S)
    assert job.resumes() >= job.checkpoint("0001") >= 40
    assert "DUE TO PREEMPTION" in job.output
    job.succeeds()


def test_a_notice_during_the_start_begins_a_new_life_that_trains(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path)
    starting = lambda: processes_with_environment("SLURM_JOB_ID", job.id)  # noqa: E731
    assert wait_until(lambda: any("-m clusterctl" in process.command for process in starting()))
    job.notice()
    assert wait_until(lambda: job.restarts() == 1, LIFE_S), job.output
    job.trains()
    job.succeeds()


def test_a_killed_slurmd_leaves_no_process_and_the_job_resumes_elsewhere(
    cgroup_lab: Lab, tmp_path: Path, leftovers: list[int]
) -> None:
    """What Slurm cannot reach there ends on its own."""
    job = Job(cgroup_lab, tmp_path, SAVE_EVERY=20)
    job.trains(beyond=45)
    node = cgroup_lab.nodes_of(job.id)[1]
    leftovers += [p.pid for p in processes_with_environment("CLUSTERCTL_JOB_DIR", str(job.directories[1]))]
    assert leftovers
    cgroup_lab.kill(node)
    assert wait_until(lambda: job.restarts() == 1, 5 * SLURMD_TIMEOUT_S), job.output
    assert job.resumes() >= job.checkpoint("0001") >= 40
    assert node not in cgroup_lab.nodes_of(job.id)
    assert wait_until(lambda: not any(map(is_alive, leftovers)), 30)
    job.succeeds()


def test_a_job_of_three_nodes_goes_on_without_one_that_goes_down(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path, nodes=3, SAVE_EVERY=20)
    job.trains(beyond=45)
    node = lab.nodes_of(job.id)[1]
    lab.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    events = job.directories[0] / ".clusterctl/runs/0001/events.jsonl"
    assert wait_until(lambda: '"event":"moved","role":"pserver","rank":1' in events.read_text(), LIFE_S), job.output
    job.succeeds()
    assert "node1 was lost" in job.output
    assert job.restarts() == 0


def test_a_lead_that_outlives_its_slurmd_is_waited_for(lab: Lab, tmp_path: Path, leftovers: list[int]) -> None:
    """The script lives on with it. It loses its other nodes, and ends the run by then."""
    job = Job(lab, tmp_path, SAVE_EVERY=20)
    job.trains(beyond=45)
    node = lab.nodes_of(job.id)[0]
    leftovers += [p.pid for p in processes_with_environment("CLUSTERCTL_JOB_DIR", str(job.directories[0]))]
    lab.kill(node)
    assert wait_until(lambda: job.restarts() == 1, 5 * SLURMD_TIMEOUT_S), job.output
    assert job.resumes() >= job.checkpoint("0001") >= 40
    assert wait_until(lambda: not any(map(is_alive, leftovers)), 30)
    job.succeeds()
