"""What Slurm says about jobs: their nodes, why they wait, and how each of them ended."""

from __future__ import annotations

import pytest

from clusterctl.config import from_values
from clusterctl.config.host_sources import slurm as hosts_of
from clusterctl.errors import UnreachableError
from clusterctl.schedulers import resolve
from clusterctl.schedulers.slurm.commands import Slurm, UnknownSlurmJob
from clusterctl.schedulers.slurm.jobs import SlurmJob
from clusterctl.schedulers.slurm.reasons import EndReason, ending, waiting_for
from real.slurm.lab import Lab, wait_until

pytestmark = pytest.mark.slurm
GREEDY = "python3 -c \"b = bytearray(300 << 20); b[::4096] = b'x' * len(b[::4096]); __import__('time').sleep(60)\""


def job_of(lab: Lab, job: str) -> SlurmJob:
    return Slurm(lab.environment).job(job)


def ended(lab: Lab, job: str, words: str = "", deadline_s: float = 60) -> EndReason:
    assert wait_until(lambda: job_of(lab, job).is_over, deadline_s), lab.state(job)
    end = ending(job_of(lab, job), words)
    assert end is not None
    return end


def waits(lab: Lab, job: str, text: str) -> bool:
    return wait_until(lambda: text in waiting_for(job_of(lab, job)), 20)


SHAPES = [
    "-N3 --ntasks-per-node=2",
    "-N3",
    "-N2 -n5",
    "-N2 -n5 --overcommit",
    "-N3 -n6 -c2",
    "-N3 -n7 --exclusive",
    "-n6",
    "-n7 --ntasks-per-node=3",
]


def test_trainers_lie_on_the_nodes_as_tasks_do(lab: Lab) -> None:
    for shape in SHAPES:
        job = as_tasks(lab, shape)
        lab.run("scancel", job)
    lab.allocate("-w", lab.nodes[0], "-n3")  # uneven: tasks follow the CPUs that each node still has
    as_tasks(lab, f"-N2 -n5 -w {','.join(lab.nodes[:2])}")


def as_tasks(lab: Lab, shape: str) -> str:
    """Compare the trainers of a job of this shape with its tasks, as Slurm tells them to its script."""
    tasks = lab.directory / "tasks"
    job = lab.submit(f"echo $SLURM_TASKS_PER_NODE > {tasks}; sleep infinity", *shape.split())
    lab.wait_for(job, "RUNNING")
    assert wait_until(lambda: tasks.exists() and tasks.read_text() != "", 20)
    settings = resolve(from_values({"HOSTS": hosts_of(job=job)}), lab.environment)
    assert [host.hostname for host in settings.hosts] == lab.nodes_of(job), shape
    assert {host.address for host in settings.hosts} == {"127.0.0.1"}
    assert [host.trainers for host in settings.hosts] == expanded(tasks.read_text().strip()), shape
    tasks.unlink()
    return job


def expanded(counts: str) -> list[int]:
    """Return [2, 2, 1] for `2(x2),1`."""
    parts = [part.rstrip(")").partition("(x") for part in counts.split(",")]
    return [int(count) for count, _, times in parts for _ in range(int(times or 1))]


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
    late = lab.submit("true", "--time=1", "--deadline=now+61")
    assert ended(lab, late).kind == "deadline"
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


def test_a_job_that_is_unknown(lab: Lab) -> None:
    with pytest.raises(UnknownSlurmJob, match="does not know job 999999"):
        job_of(lab, "999999")
    assert lab.run("sacct", "-j", "999999").stderr == "Slurm accounting storage is disabled\n"
