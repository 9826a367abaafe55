"""What Slurm says about jobs: their nodes, why they wait, and how each of them ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.config import from_values
from clusterctl.config.host_sources import slurm as hosts_of
from clusterctl.errors import UnreachableError
from clusterctl.schedulers import resolve
from clusterctl.schedulers.slurm.commands import Slurm, UnknownSlurmJob
from clusterctl.schedulers.slurm.jobs import Job
from clusterctl.schedulers.slurm.reasons import Ending, ending, waiting_for
from slurm.lab import Lab, slurm
from support.processes import wait_until

pytestmark = pytest.mark.slurm
GREEDY = "python3 -c \"b = bytearray(300 << 20); b[::4096] = b'x' * len(b[::4096]); __import__('time').sleep(60)\""


def job_of(lab: Lab, job: str) -> Job:
    return Slurm(lab.environment).job(job)


def ended(lab: Lab, job: str, words: str = "", deadline_s: float = 60) -> Ending:
    assert wait_until(lambda: job_of(lab, job).is_over, deadline_s), lab.state(job)
    end = ending(job_of(lab, job), words)
    assert end is not None
    return end


def waits(lab: Lab, job: str, text: str) -> bool:
    return wait_until(lambda: text in waiting_for(job_of(lab, job)), 20)


SHAPES = [
    ("-N3", "--ntasks-per-node=2"),
    ("-N3",),
    ("-N2", "-n5"),
    ("-N2", "-n5", "--overcommit"),
    ("-N3", "-n6", "-c2"),
    ("-N3", "-n7", "--exclusive"),
    ("-n6",),
    ("-n7", "--ntasks-per-node=3"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=" ".join)
def test_trainers_lie_on_the_nodes_as_tasks_do(lab: Lab, shape: tuple[str, ...]) -> None:
    job = lab.submit("echo $SLURM_TASKS_PER_NODE > tasks; sleep infinity", *shape)
    lab.wait_for(job, "RUNNING")
    tasks = lab.directory / "tasks"
    assert wait_until(lambda: tasks.exists() and tasks.read_text() != "", 20)
    settings = resolve(from_values({"HOSTS": hosts_of(job=job)}), lab.environment)
    assert [host.hostname for host in settings.hosts] == lab.nodes_of(job)
    assert {host.address for host in settings.hosts} == {"127.0.0.1"}
    assert [host.trainers for host in settings.hosts] == expanded(tasks.read_text().strip())
    tasks.unlink()


def expanded(counts: str) -> list[int]:
    """Return [2, 2, 1] for `2(x2),1`."""
    parts = [part.rstrip(")").partition("(x") for part in counts.split(",")]
    return [int(count) for count, _, times in parts for _ in range(int(times or 1))]


def test_uneven_tasks_follow_the_cpus_that_each_node_gave(lab: Lab) -> None:
    lab.allocate("-w", lab.nodes[0], "-n3")
    test_trainers_lie_on_the_nodes_as_tasks_do(lab, ("-N2", "-n5", "-w", ",".join(lab.nodes[:2])))


def test_inside_a_step_the_nodes_are_those_of_the_job(lab: Lab) -> None:
    job = lab.allocate("-N3")
    inside = lab.step(job, lab.node_of(job), "env").stdout.splitlines()
    environ = dict(line.partition("=")[::2] for line in inside)
    assert environ["SLURM_JOB_NODELIST"] == lab.node_of(job)
    settings = resolve(from_values({"HOSTS": hosts_of()}), {**environ, "PATH": lab.environment["PATH"]})
    assert [host.hostname for host in settings.hosts] == lab.nodes_of(job)


def test_a_queued_job_says_why(lab: Lab) -> None:
    lab.allocate("-N4", "--exclusive")
    first = lab.submit("true", "-N4", "--exclusive", "--time=5")
    assert waits(lab, first, "waiting for free nodes (Resources)")
    assert waits(lab, lab.submit("true", "-N1", "--time=10000"), "jobs with a higher priority are ahead (Priority)")
    held = lab.submit("true", "--hold")
    assert waits(lab, held, f"held; scontrol release {held} lets it start (JobHeldUser)")
    assert waits(lab, lab.submit("true", "-d", f"afterok:{held}"), "waiting for a job that it depends on")
    assert waits(lab, lab.submit("true", "--begin=now+1hour"), "its start time has not come")
    assert waits(lab, lab.submit("true", "-N9"), "it asks for more nodes than its partition has")
    with pytest.raises(UnreachableError, match=f"Slurm job {held} is queued: held"):
        resolve(from_values({"HOSTS": hosts_of(job=held)}), lab.environment)


def test_success_failure_and_cancellation(lab: Lab) -> None:
    jobs = [lab.submit(script) for script in ("true", "exit 9", "kill -SEGV $$")]
    ends = [ended(lab, job) for job in jobs]
    assert [end.kind for end in ends] == ["succeeded", "failed", "failed"]
    assert [end.text for end in ends[1:]] == [
        "its script failed with exit code 9",
        "its script was killed by signal 11",
    ]
    job = lab.allocate("-N2")
    lab.run("scancel", job)
    assert ended(lab, job).kind == "cancelled"
    never = lab.submit("true", "--hold")
    lab.run("scancel", never)
    assert ended(lab, never).kind == "cancelled"
    with pytest.raises(UnreachableError, match="has ended: it was cancelled"):
        resolve(from_values({"HOSTS": hosts_of(job=job)}), lab.environment)


def test_without_cgroups_only_words_tell_of_the_memory_limit(lab: Lab) -> None:
    job = lab.submit(GREEDY, "--mem=100")
    assert ended(lab, job).text == "its script was killed by signal 9"
    words = (lab.directory / f"job-{job}.out").read_text()
    assert ended(lab, job, words).kind == "memory"
    assert "exceeded memory limit" in words


def test_with_cgroups_the_state_tells_of_the_memory_limit(cgroup_lab: Lab) -> None:
    job = cgroup_lab.submit(GREEDY, "--mem=100")
    assert ended(cgroup_lab, job).kind == "memory"
    assert job_of(cgroup_lab, job).state == "OUT_OF_MEMORY"
    # A step that is over it ends alone: the job goes on, and as it ends, it is its script that counts.
    job = cgroup_lab.allocate("-N1", "--mem=100")
    step = cgroup_lab.step(job, cgroup_lab.node_of(job), "sh", "-c", f"exec {GREEDY}")
    assert step.returncode != 0
    assert "Out Of Memory" in step.stderr
    assert cgroup_lab.state(job) == "RUNNING"


def test_a_failed_node_ends_a_job_or_requeues_it(lab: Lab) -> None:
    job = lab.allocate("-N2", "--no-requeue", "-w", ",".join(lab.nodes[:2]))
    lab.output("scontrol", "update", f"nodename={lab.nodes[1]}", "state=down", "reason=test")
    assert ended(lab, job).kind == "node_failure"
    job = lab.allocate("-N2", "--requeue", "-w", ",".join(lab.nodes[2:]))
    lab.output("scontrol", "update", f"nodename={lab.nodes[3]}", "state=down", "reason=test")
    assert wait_until(lambda: job_of(lab, job).restarts == 1, 30)
    # It waits a moment, for the credentials of its first life (AuthInfo=cred_expire); then it begins again.
    lab.wait_for(job, "RUNNING")


def test_a_job_of_higher_priority_ends_one_or_requeues_it(lab: Lab) -> None:
    whole = ("-N4", "-c4")
    job = lab.allocate(*whole, "--no-requeue")
    urgent = lab.allocate(*whole, "-p", "urgent")
    assert ended(lab, job).kind == "preempted"
    lab.run("scancel", urgent)
    job = lab.allocate(*whole, "--requeue")
    with lab.begin_step(job, lab.nodes[1], "sleep", "300") as step:
        lab.allocate(*whole, "-p", "urgent")
        assert b"DUE TO PREEMPTION" in step.communicate(timeout=60)[1]
    assert wait_until(lambda: (found := job_of(lab, job)).is_queued and found.restarts == 1, 30)


def test_a_time_limit_ends_a_job(lab: Lab) -> None:
    job = lab.allocate("-N1", "--time=1")
    lab.output("scontrol", "update", f"jobid={job}", "endtime=now+1")  # within 30 s, not 90
    with lab.begin_step(job, lab.node_of(job), "sleep", "300") as step:
        words = step.communicate(timeout=60)[1].decode()
    assert "DUE TO TIME LIMIT" in words
    assert ended(lab, job).text == "it reached its time limit of 1:00"


def test_a_job_that_is_unknown(lab: Lab) -> None:
    with pytest.raises(UnknownSlurmJob, match="does not know job 999999"):
        job_of(lab, "999999")
    assert lab.run("sacct", "-j", "999999").stderr == "Slurm accounting storage is disabled\n"


def test_a_job_is_forgotten_after_its_end(tmp_path: Path) -> None:
    """After MinJobAge, by default 300 s, the controller knows as much of it as of one that never was."""
    with slurm(tmp_path, min_job_age_s=2) as lab:
        job = lab.submit("true")
        assert ended(lab, job).kind == "succeeded"
        assert wait_until(lambda: lab.run("squeue", "-h", "-t", "all", "-j", job).returncode != 0)
        with pytest.raises(UnknownSlurmJob, match=f"does not know job {job}"):
            job_of(lab, job)


def test_a_controller_that_is_gone(tmp_path: Path) -> None:
    with slurm(tmp_path) as lab:
        lab.kill("slurmctld")
        with pytest.raises(UnreachableError, match="the Slurm controller does not answer"):
            job_of(lab, "1")
