"""Why a Slurm job waits, why it ended, and why it was not taken, in words. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterctl.schedulers.slurm.jobs import SlurmJob

WAITING = {
    "Resources": "waiting for free nodes",
    "Priority": "jobs with a higher priority are ahead",
    "Dependency": "waiting for a job that it depends on",
    "DependencyNeverSatisfied": "the job that it depends on failed, so it will never start",
    "JobHeldUser": "held; scontrol release {id} lets it start",
    "JobHeldAdmin": "held by an administrator",
    "BeginTime": "its start time has not come, or it was requeued a moment ago",
    "ReqNodeNotAvail": "a node that it asks for is down or reserved",
    "PartitionConfig": "it asks for more than the nodes of its partition have",
    "PartitionNodeLimit": "it asks for more nodes than its partition has or allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "Licenses": "waiting for licenses",
    "Reservation": "waiting for its reservation",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no nodes have what it asks for",
    "JobLaunchFailure": "it could not be launched",
    "launch_failed_requeued_held": "it could not be launched, and is held; scontrol release {id} lets it start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its quality of service is not valid",
}
LIMITS = re.compile(r"(?:QOS|Assoc|MaxCpu|MaxMem|.*Limit$)")


class EndReason(NamedTuple):
    """Why a job or a step of it ended.

    `kind` is succeeded, failed, time_limit, memory, preempted, node_failure, cancelled, deadline or other.
    """

    kind: str
    text: str
    hint: str | None = None


def waiting_for(job: SlurmJob) -> str:
    """Return why a queued job waits, with Slurm's word in brackets, as in `waiting for free nodes (Resources)`."""
    word = job.reason.partition(",")[0].strip()  # ReqNodeNotAvail, UnavailableNodes:n2
    if not word:
        return "Slurm gives no reason yet"
    known = WAITING.get(word) or ("a limit of the account or partition is reached" if LIMITS.match(word) else None)
    return f"{known.format(id=job.id)} ({job.reason})" if known else job.reason


PREEMPTED = EndReason("preempted", "it was preempted by another job", "submit it again; with --requeue Slurm does")
NODE_FAILURE = EndReason("node_failure", "one of its nodes failed", "see sinfo -R; submit it again")
CANCELLED = EndReason("cancelled", "it was cancelled (scancel)")
MEMORY = EndReason("memory", "it used more memory than it asked for", "submit it with more memory (--mem)")
TIME_LIMIT = EndReason("time_limit", "it reached its time limit", "submit it with more time (--time)")
DEADLINE = EndReason("deadline", "it could not end before its deadline")


def ending(job: SlurmJob, words: str = "") -> EndReason | None:
    """Return why a job ended, None if it has not. `words` is what its steps or its script printed to stderr.

    The words decide where Slurm's state is vague: without cgroups, a script killed for its memory or by anyone is a
    launch failure with signal 9.
    """
    if not job.is_over:
        return None
    said = ending_in(words)
    by_state = {
        "TIMEOUT": _time_limit(job),
        "OUT_OF_MEMORY": MEMORY,
        "PREEMPTED": PREEMPTED,
        "NODE_FAIL": NODE_FAILURE,
        "BOOT_FAIL": EndReason("node_failure", "its nodes could not be booted", NODE_FAILURE.hint),
        "CANCELLED": said or CANCELLED,
        "DEADLINE": DEADLINE,
        "COMPLETED": EndReason("succeeded", "it succeeded"),
    }
    if job.state in by_state:
        return by_state[job.state]
    if job.state == "FAILED":
        return said or _failed(job)
    return EndReason("other", f"Slurm calls its state {job.state}")


def _time_limit(job: SlurmJob) -> EndReason:
    limit = f" of {job.time_limit}" if job.time_limit else ""
    return TIME_LIMIT._replace(text=f"{TIME_LIMIT.text}{limit}")


def _failed(job: SlurmJob) -> EndReason:
    if job.exit_code is None:
        return EndReason("failed", f"its script was killed by signal {job.signal}")
    if job.reason == "JobLaunchFailure":
        return EndReason("failed", "its script could not be launched", "see the log of slurmd on its first node")
    return EndReason("failed", f"its script failed with exit code {job.exit_code}")


#: The first match counts: the line of a cancelled step names the reason at its end, if there is one.
_WORDS = (
    (r"DUE TO TIME LIMIT", TIME_LIMIT),
    (r"DUE TO PREEMPTION", PREEMPTED),
    (r"DUE TO NODE FAILURE|error: Node failure on", NODE_FAILURE),
    (r"exceeded memory limit|Exceeded job memory limit|oom-kill event|task \d+: Out Of Memory", MEMORY),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT(?!.* DUE TO JOB REQUEUE)", CANCELLED),
)


def ending_in(words: str) -> EndReason | None:
    """Return the reason that srun or slurmstepd printed among `words`, None if they printed none."""
    lines = "\n".join(line for line in words.splitlines() if re.match(r"srun: |slurmstepd(-\S+)?: ", line))
    return next((end for pattern, end in _WORDS if re.search(pattern, lines)), None)


class Refusal(NamedTuple):
    """Why Slurm did not take a job, in its words without the name of the program, and what to do."""

    text: str
    hint: str


_PARTITION = 'sinfo lists the partitions; name one in conf.py: SBATCH = ["--partition=..."]'
_ACCOUNT = 'sacctmgr show associations user=$USER lists your accounts; name one in conf.py: SBATCH = ["--account=..."]'
_TIME = 'give --time within the limit of the partition: sinfo -o "%P %l"'
_NODES = "sinfo -Nl shows what the nodes have; lower --nodes, or change SBATCH in conf.py"
_OPTION = "correct SBATCH in conf.py; sbatch --help lists the options"
#: The first match counts.
_REFUSALS = (
    (r"[Ii]nvalid partition", _PARTITION),
    (r"[Ii]nvalid account|[Ii]nvalid qos|QOS specification", _ACCOUNT),
    (r"[Tt]ime ?limit|--time", _TIME),
    (r"accounting/QOS policy", "it asks for more than the account may have: fewer nodes, or less time"),
    (r"node configuration|[Nn]ode count|processors requested|[Mm]emory specification", _NODES),
    (r"unrecognized option|invalid option|ambiguous|requires an argument|[Ii]nvalid .* specif|[Ii]nvalid ", _OPTION),
)


def refused(stderr: str) -> Refusal:
    """Return the reason in what a failed sbatch printed."""
    lines = [line.strip().removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines()]
    told = [line for line in lines if line and not line.startswith(("Try ", "Use "))]
    text = told[-1].removeprefix("Batch job submission failed: ") if told else "it printed nothing"
    return Refusal(text, next((hint for pattern, hint in _REFUSALS if re.search(pattern, text)), _OPTION))
