"""Slurm's job states, reasons and last messages, recorded with Slurm 22.05.8; see `tests/real/slurm/lab.py`."""

from __future__ import annotations

import pytest

from clusterctl.schedulers.slurm.jobs import SlurmJob
from clusterctl.schedulers.slurm.reasons import ending, ending_in, waiting_for

TIME = "slurmstepd-n4: error: *** STEP 25.0 ON n4 CANCELLED AT 2026-11-23T21:33:30 DUE TO TIME LIMIT ***"
PREEMPTION = "slurmstepd: error: *** JOB 29 ON n1 CANCELLED AT 2026-11-23T21:35:34 DUE TO PREEMPTION ***"
NODE = """\
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: Node failure on n2
slurmstepd-n2: error: *** STEP 19.0 ON n2 CANCELLED AT 2026-11-23T21:30:34 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
"""  # noqa: E501 - as it was printed
CANCELLED = """\
slurmstepd-n2: error: *** STEP 13.0 ON n2 CANCELLED AT 2026-11-23T21:29:43 ***
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n2: task 0: Terminated
"""
REQUEUED = "slurmstepd-n1: error: *** JOB 2 ON n1 CANCELLED AT 2026-11-24T03:30:30 DUE TO JOB REQUEUE ***"
MEMORY_LINUXPROC = """\
slurmstepd-n1: error: StepId=18.0 exceeded memory limit (328142848 > 104857600), being killed
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 18.0 ON n1 CANCELLED AT 2026-11-23T21:30:01 ***
srun: error: n1: task 0: Killed
"""
MEMORY_CGROUP = """\
slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have been killed by the cgroup out-of-memory handler.
srun: error: n2: task 0: Out Of Memory
"""  # noqa: E501 - as it was printed


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (TIME, "time_limit"),
        (PREEMPTION, "preempted"),
        (NODE, "node_failure"),
        (CANCELLED, "cancelled"),
        (MEMORY_LINUXPROC, "memory"),
        (MEMORY_CGROUP, "memory"),
        ("srun: error: n1: task 0: Exited with exit code 7", None),
        ("the program prints: DUE TO TIME LIMIT", None),
        ("", None),
    ],
)
def test_last_words_name_the_reason(words: str, kind: str | None) -> None:
    end = ending_in(words)
    assert (end.kind if end else None) == kind


@pytest.mark.parametrize(
    ("job", "words", "kind", "text"),
    [
        (SlurmJob("1", "COMPLETED"), "", "succeeded", "it succeeded"),
        (
            SlurmJob("1", "TIMEOUT", "TimeLimit", time_limit="1:00"),
            "",
            "time_limit",
            "it reached its time limit of 1:00",
        ),
        (SlurmJob("1", "OUT_OF_MEMORY", "OutOfMemory", signal=125), "", "memory", "more memory than it asked for"),
        (SlurmJob("1", "PREEMPTED"), "", "preempted", "preempted by another job"),
        (SlurmJob("1", "NODE_FAIL", "NodeDown", signal=15), "", "node_failure", "one of its nodes failed"),
        (SlurmJob("1", "CANCELLED", signal=15), "", "cancelled", "cancelled (scancel)"),
        (SlurmJob("1", "FAILED", "NonZeroExitCode", exit_code=9), "", "failed", "failed with exit code 9"),
        (SlurmJob("1", "FAILED", "JobLaunchFailure", exit_code=None, signal=11), "", "failed", "killed by signal 11"),
        (
            SlurmJob("1", "FAILED", "JobLaunchFailure", exit_code=None, signal=9),
            MEMORY_LINUXPROC,
            "memory",
            "more memory",
        ),
        (SlurmJob("1", "FAILED", "NonZeroExitCode", exit_code=9), REQUEUED, "failed", "failed with exit code 9"),
    ],
)
def test_an_ended_job_has_a_reason_in_words(job: SlurmJob, words: str, kind: str, text: str) -> None:
    end = ending(job, words)
    assert end is not None
    assert end.kind == kind
    assert text in end.text


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED"])
def test_a_job_that_goes_on_has_no_ending(state: str) -> None:
    assert ending(SlurmJob("1", state), TIME) is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("Resources", "waiting for free nodes (Resources)"),
        ("JobHeldUser", "held; scontrol release 7 lets it start (JobHeldUser)"),
        ("ReqNodeNotAvail, UnavailableNodes:n2", "down or reserved (ReqNodeNotAvail, UnavailableNodes:n2)"),
        ("QOSMaxCpuPerUserLimit", "a limit of the account or partition is reached (QOSMaxCpuPerUserLimit)"),
        ("SomethingNew", "SomethingNew"),
        ("", "Slurm gives no reason yet"),
    ],
)
def test_a_queued_job_says_why_it_waits(reason: str, text: str) -> None:
    assert text in waiting_for(SlurmJob("7", "PENDING", reason))
