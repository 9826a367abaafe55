"""Jobs that are submitted to a real Slurm, as the login node sees them: waiting, running, and after their end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm.lab import Lab, slurm
from support.processes import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
DONE = 'import os\n\nprint("trained", os.environ["CLUSTERCTL_RANK"], flush=True)\n'
WAITS = """\
import os, pathlib, time

print("begun", os.environ["CLUSTERCTL_RANK"], flush=True)
while not pathlib.Path(os.environ["PLACE"], "go").exists():
    time.sleep(0.05)
print("gone on", os.environ["CLUSTERCTL_RANK"], flush=True)
"""


GREEDY = "b = bytearray(600 << 20)\nb[::4096] = b'x' * len(b[::4096])\n__import__('time').sleep(60)\n"


@dataclass
class Login:
    """A directory of a user on the login node, with conf.py and a workspace."""

    lab: Lab
    directory: Path

    def write(self, train: str = DONE, **settings: Any) -> None:
        given = {"ROOT_DIR": f"{self.directory}/root", "PYTHON": sys.executable, "PSERVERS": 0, **settings}
        given["ENV"] = {"PLACE": str(self.directory)}
        lines = ["HOSTS = slurm()", *(f"{name} = {value!r}" for name, value in given.items())]
        (self.directory / "conf.py").write_text("\n".join(lines) + "\n")
        (self.directory / "work").mkdir(exist_ok=True)
        (self.directory / "work/train.py").write_text(train)

    def run(self, *argv: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        conf = str(self.directory / "conf.py")
        return self.lab.run(sys.executable, "-m", "clusterctl", "--conf", conf, *argv, timeout_s=timeout_s)

    def output(self, *argv: str, code: int = 0) -> str:
        done = self.run(*argv)
        assert done.returncode == code, done
        return " ".join((done.stdout + done.stderr).split())

    def status(self, *argv: str) -> Any:
        return json.loads(self.run("status", *argv, "--json").stdout)

    def submit(self, *options: str) -> str:
        done = self.run("submit", str(self.directory / "work"), "--json", *options)
        assert done.returncode == 0, done
        return str(json.loads(done.stdout)["id"])

    def printed(self, job: str) -> str:
        """Return what the script of a job printed."""
        path = self.directory / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def begun(self, job: str, nodes: int) -> None:
        """Wait until all trainers have begun."""
        logs = [self.directory / f"root/node{node}" for node in range(nodes)]

        def all_have() -> bool:
            found = [log for root in logs for log in root.glob("JOB*/log/train.log") if "begun" in log.read_text()]
            return len(found) == nodes

        assert wait_until(all_have, 60), self.printed(job)

    def go(self) -> None:
        (self.directory / "go").touch()


@pytest.fixture
def login(lab: Lab, tmp_path: Path) -> Login:
    made = Login(lab, tmp_path)
    made.write()
    return made


def ended(login: Login, job: str, *states: str) -> None:
    login.lab.wait_for(job, *states, deadline_s=120)


def test_a_job_waits_runs_and_ends(login: Login) -> None:
    login.write(WAITS)
    login.lab.allocate("-N4", "--exclusive", "--job-name=other")
    job = login.submit("--nodes", "3")
    assert wait_until(lambda: "waiting for free nodes (Resources)" in login.output("status"), 60)
    assert login.status(job)["state"] == "queued"
    assert "waiting for free nodes" in login.output("why")
    assert "waiting for free nodes" in login.output("logs", code=3)
    login.lab.run("scancel", "--name=other")
    login.begun(job, 3)
    status = login.status()
    assert (status["state"], status["name"], len(status["nodes"])) == ("running", f"slurm-{job}", 3)
    assert "begun 2" in login.output("logs", job)
    assert "has been running" in login.output("why", status["job"])
    login.go()
    ended(login, job, "COMPLETED")
    for named in ((), (job,), (f"slurm-{job}",), (status["job"],)):
        assert login.status(*named)["state"] == "succeeded"
    assert "gone on 2" in login.output("logs")
    assert "collected" in login.output("collect", "-o", str(login.directory / "home"))
    assert "gone on 1" in (login.directory / "home/node-1/log/train.log").read_text()
    assert f"nothing to stop: Slurm job {job} has ended: it succeeded" in login.output("stop")


def test_following_the_logs_lasts_from_the_queue_to_the_end_of_the_job(login: Login) -> None:
    login.write(WAITS)
    login.lab.allocate("-N4", "--exclusive", "--job-name=other")
    job = login.submit("--nodes", "2")
    conf = str(login.directory / "conf.py")
    command = [sys.executable, "-m", "clusterctl", "--conf", conf, "logs", "-f"]
    environment = login.lab.environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as logs:
        assert logs.stderr is not None
        assert "is queued" in logs.stderr.readline()
        login.lab.run("scancel", "--name=other")
        login.begun(job, 2)
        login.go()
        out, err = logs.communicate(timeout=120)
    assert logs.returncode == 0, err
    assert sorted(line.split()[-3:] for line in out.splitlines() if "gone on" in line) == [
        ["gone", "on", "0"],
        ["gone", "on", "1"],
    ]


def test_stop_cancels_a_job_that_waits_and_stops_the_run_of_one_that_runs(login: Login) -> None:
    login.write(WAITS)
    login.write(WAITS, SBATCH=["--hold"])
    held = login.submit("--nodes", "1")
    assert login.output("stop") == f"cancelled: Slurm job {held}, which was queued"
    assert "it was cancelled (scancel)" in login.output("status")
    login.write(WAITS)
    job = login.submit("--nodes", "2")
    login.begun(job, 2)
    assert "stopped: 2/2 nodes, 0 processes left" in login.output("stop", job)
    ended(login, job, "FAILED", "COMPLETED")
    assert login.status(job)["state"] == "stopped"
    assert "was stopped by the user" in login.output("why")


def test_a_time_limit_is_the_first_cause(login: Login) -> None:
    login.write(WAITS)
    job = login.submit("--nodes", "2", "--time", "1")
    login.begun(job, 2)
    login.lab.output("scontrol", "update", f"jobid={job}", "endtime=now+1")
    ended(login, job, "TIMEOUT")
    said = login.output("why")
    assert f"first cause: Slurm job {job}: it reached its time limit of 1:00" in said
    assert "what to do: submit it with more time" in said
    assert login.status()["state"] in ("failed", "stopped", "lost")


def test_scancel_and_a_failed_node_are_first_causes(login: Login) -> None:
    login.write(WAITS)
    job = login.submit("--nodes", "2")
    login.begun(job, 2)
    login.lab.run("scancel", job)
    ended(login, job, "CANCELLED")
    assert f"first cause: Slurm job {job}: it was cancelled (scancel)" in login.output("why")
    for log in login.directory.glob("root/node*/JOB*/log/train.log"):
        log.unlink()
    job = login.submit("--nodes", "2")
    login.begun(job, 2)
    node = login.lab.nodes_of(job)[1]
    login.lab.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    ended(login, job, "NODE_FAIL")
    assert f"first cause: Slurm job {job}: one of its nodes failed" in login.output("why", job)


def test_preemption_is_the_first_cause(login: Login) -> None:
    login.write(WAITS)
    job = login.submit("--nodes", "4")
    login.begun(job, 4)
    login.lab.allocate("-N4", "-c4", "-p", "urgent")
    ended(login, job, "PREEMPTED")
    assert f"first cause: Slurm job {job}: it was preempted by another job" in login.output("why")


def test_a_root_dir_that_is_not_shared_is_shown_by_the_login_node(login: Login) -> None:
    """All nodes are this machine, so the mark is hidden from them: the directory is another one when they look."""
    root, hidden = login.directory / "root", login.directory / "hidden"
    login.write(SBATCH=["--hold"])
    job = login.submit("--nodes", "2")
    root.rename(hidden)
    login.lab.output("scontrol", "release", job)
    ended(login, job, "FAILED")
    assert "ROOT_DIR is not shared" in login.printed(job)
    hidden.rename(root)
    assert "ROOT_DIR is not shared: its first node cannot see" in login.output("status")
    assert not (root / "node0").exists()


def test_what_slurm_refuses_is_an_error_of_usage(login: Login) -> None:
    login.write(SBATCH=["--partition=nowhere"])
    said = login.output("submit", str(login.directory / "work"), code=2)
    assert "sbatch refused the job: Invalid partition name specified" in said
    login.write(SBATCH=["--nonsense"])
    assert "unrecognized option '--nonsense'" in login.output("submit", str(login.directory / "work"), code=2)


def test_a_job_whose_script_fails_before_its_run_shows_what_it_printed(login: Login) -> None:
    text = (login.directory / "conf.py").read_text()
    login.write(SBATCH=["--hold"])
    job = login.submit("--nodes", "1")
    (login.directory / "conf.py").write_text("PROT = 1\n")
    login.lab.output("scontrol", "release", job)
    ended(login, job, "FAILED")
    (login.directory / "conf.py").write_text(text)
    said = login.output("why", job)
    assert "its script failed with exit code 2" in said
    assert "PROT is not a setting" in said


def test_a_controller_that_is_away_and_a_job_that_it_forgets(tmp_path: Path) -> None:
    with slurm(tmp_path, min_job_age_s=2) as lab:
        login = Login(lab, tmp_path / "home")
        login.directory.mkdir()
        login.write()
        job = login.submit("--nodes", "2")
        assert wait_until(lambda: lab.run("squeue", "-h", "-t", "all", "-j", job).returncode != 0, 120)
        status = login.status()
        assert (status["state"], status["scheduler"]["stage"]) == ("succeeded", "ended")
        assert "trained 1" in login.output("logs", job)
        lab.kill("slurmctld")
        assert "the Slurm controller does not answer" in login.output("status", code=3)
        assert "the Slurm controller does not answer" in login.output("submit", str(login.directory / "work"), code=3)


def test_a_memory_limit_is_the_first_cause(login: Login) -> None:
    exceeds_its_memory(login)


def test_a_memory_limit_is_the_first_cause_with_cgroups(cgroup_lab: Lab, tmp_path: Path) -> None:
    exceeds_its_memory(Login(cgroup_lab, tmp_path))


def exceeds_its_memory(login: Login) -> None:
    login.write(GREEDY, RESTARTS=0, SBATCH=["--mem=300"])
    job = login.submit("--nodes", "1")
    ended(login, job, "FAILED", "OUT_OF_MEMORY", "CANCELLED")
    assert "memory" in login.output("why")


def test_a_job_runs_to_its_end_with_cgroups(cgroup_lab: Lab, tmp_path: Path) -> None:
    login = Login(cgroup_lab, tmp_path)
    login.write(WAITS)
    job = login.submit("--nodes", "2")
    login.begun(job, 2)
    assert login.status()["state"] == "running"
    login.go()
    ended(login, job, "COMPLETED")
    assert login.status()["state"] == "succeeded"
