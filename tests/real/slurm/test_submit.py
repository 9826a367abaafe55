"""Jobs that are submitted to a real Slurm, as the login node sees them: waiting, running, and after their end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from real.slurm.lab import Lab, wait_until

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

    @property
    def program(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "clusterctl", "--conf", str(self.directory / "conf.py"))

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.lab.run(*self.program, *argv, timeout_s=120, **variables)

    def popen(self, *argv: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.program, *argv], stdout=pipe, stderr=pipe, text=True, env=self.lab.environment)

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

    def begun(self, count: int, of: int | None = None) -> None:
        """Wait until so many trainers have begun, on as many nodes, or on the first `of`."""
        roots = [self.directory / f"root/node{node}" for node in range(of or count)]

        def all_have() -> bool:
            logs = [log for root in roots for log in root.glob("JOB*/log/train.log")]
            return sum("begun" in log.read_text() for log in logs) == count

        assert wait_until(all_have), [path.read_text() for path in self.directory.glob("slurm-*.out")]

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
    assert wait_until(lambda: "waiting for free nodes (Resources)" in login.output("status"))
    assert login.status(job)["state"] == "queued"
    assert "waiting for free nodes" in login.output("why")
    assert f"Slurm job {job} is queued: waiting for free nodes" in login.output("jobs")
    assert "waiting for free nodes" in login.output("logs", code=3)
    with login.popen("logs", "-f") as logs:  # from the queue to the end
        assert logs.stderr is not None
        assert logs.stdout is not None
        assert "is queued" in logs.stderr.readline()
        login.lab.run("scancel", "--name=other")
        login.begun(3)
        assert wait_until(lambda: login.status()["state"] == "running")
        status = login.status()
        assert (status["name"], len(status["nodes"])) == (f"slurm-{job}", 3)
        assert "begun 2" in login.output("logs", job)
        assert "has been running" in login.output("why", status["job"])
        listed = json.loads(login.run("jobs", "--json").stdout)["jobs"]
        assert [(one["job"], one["state"]) for one in listed] == [(status["job"], "running")]
        assert "begun" in logs.stdout.readline()  # it has found the run
        login.go()
        out, err = logs.communicate(timeout=120)
    assert logs.returncode == 0, (out, err)
    assert sorted(line.split()[-1] for line in out.splitlines() if "gone on" in line) == ["0", "1", "2"]
    ended(login, job, "COMPLETED")
    for named in (job, status["job"]):
        assert login.status(named)["state"] == "succeeded"
    assert "gone on 2" in login.output("logs", f"slurm-{job}")
    assert "succeeded" in login.output("jobs")
    assert "collected" in login.output("collect", "-o", str(login.directory / "home"))
    assert "gone on 1" in (login.directory / "home/node-1/log/train.log").read_text()
    assert f"nothing to stop: Slurm job {job} has ended: it succeeded" in login.output("stop")


def test_stop_cancels_a_job_that_waits_and_stops_the_run_of_one_that_runs(login: Login) -> None:
    login.write(WAITS, SBATCH=["--hold"])
    held = login.submit("--nodes", "1")
    assert login.output("stop") == f"cancelled: Slurm job {held}, which was queued"
    assert "it was cancelled (scancel)" in login.output("status")
    login.write(WAITS)
    job = login.submit("--nodes", "2")
    login.begun(2)
    assert "stopped: 2/2 nodes, 0 processes left" in login.output("stop", job)
    ended(login, job, "FAILED", "COMPLETED")
    assert login.status(job)["state"] == "stopped"
    assert "was stopped by the user" in login.output("why")


def test_the_end_that_slurm_puts_to_a_job_is_the_first_cause(login: Login) -> None:
    """The jobs begin at once, in one ROOT_DIR and from one workspace: each has a job directory of its own."""
    lab = login.lab
    login.write(WAITS)
    late, gone = (login.submit("--nodes", "1", "--time", "1") for _ in range(2))
    login.write(WAITS, SBATCH=[f"--nodelist={lab.nodes[3]}"])
    failed = login.submit("--nodes", "1")
    login.begun(3, of=1)
    lab.output("scontrol", "update", f"jobid={late}", "endtime=now+1")  # Slurm looks at it within 30 s
    lab.output("scontrol", "update", f"nodename={lab.nodes[3]}", "state=down", "reason=test")
    lab.run("scancel", gone)
    ended(login, gone, "CANCELLED")
    assert f"first cause: Slurm job {gone}: it was cancelled (scancel)" in login.output("why", gone)
    ended(login, failed, "NODE_FAIL")
    assert f"first cause: Slurm job {failed}: one of its nodes failed" in login.output("why", failed)
    login.write(GREEDY, RESTARTS=0, SBATCH=["--mem=300"])
    greedy = login.submit("--nodes", "1")
    ended(login, greedy, "FAILED", "CANCELLED")
    assert f"first cause: Slurm job {greedy}: it used more memory than it asked for" in login.output("why", greedy)
    ended(login, late, "TIMEOUT")
    said = login.output("why", late)
    assert f"first cause: Slurm job {late}: it reached its time limit of 1:00" in said
    assert "what to do: submit it with more time" in said
    assert "DUE TO TIME LIMIT" in login.printed(late)
    assert login.status(late)["state"] in ("failed", "stopped", "lost")


def test_preemption_and_a_deadline_are_first_causes(login: Login) -> None:
    login.write(WAITS)
    job = login.submit("--nodes", "4")
    login.begun(4)
    login.lab.allocate("-N4", "-c4", "-p", "urgent")
    ended(login, job, "PREEMPTED")
    assert f"first cause: Slurm job {job}: it was preempted by another job" in login.output("why")
    login.write(WAITS, SBATCH=["--deadline=now+61"])
    late = login.submit("--nodes", "1", "--time", "1")
    ended(login, late, "DEADLINE")
    assert f"Slurm job {late} has ended: it could not end before its deadline" in login.output("why")


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


def test_a_controller_that_is_away_and_jobs_that_it_forgets(login: Login) -> None:
    """After MinJobAge (300 s) it knows as little of a job as one that lost its memory: here it loses it at once."""
    lab = login.lab
    unseen, seen = login.submit("--nodes", "1"), login.submit("--nodes", "2")
    ended(login, unseen, "COMPLETED")
    ended(login, seen, "COMPLETED")
    assert login.status(seen)["scheduler"]["kind"] == "succeeded"
    lab.kill("slurmctld")
    impatient = login.directory / "slurm.conf"
    impatient.write_text(lab.conf.read_text() + "MessageTimeout=2\n")
    for command in (("status",), ("submit", str(login.directory / "work"))):
        done = login.run(*command, SLURM_CONF=str(impatient))
        assert (done.returncode, "the Slurm controller does not answer" in done.stderr) == (3, True), done
    lab.start_controller("-c")
    assert lab.run("squeue", "-h", "-t", "all", "-j", seen).returncode != 0
    for job, kind in ((seen, "succeeded"), (unseen, "unknown")):
        status = login.status(job)
        assert (status["state"], status["scheduler"]["stage"]) == ("succeeded", "ended")
        assert status["scheduler"]["kind"] == kind
    assert "trained 1" in login.output("logs", seen)
    assert "Slurm does not know job 999999" in login.output("status", "999999", code=2)


def test_a_memory_limit_is_the_first_cause_with_cgroups(cgroup_lab: Lab, tmp_path: Path) -> None:
    login = Login(cgroup_lab, tmp_path)
    login.write(GREEDY, RESTARTS=0, SBATCH=["--mem=300"])
    job = login.submit("--nodes", "1")
    ended(login, job, "FAILED", "OUT_OF_MEMORY")
    assert "was killed by the kernel: out of memory" in login.output("why")
