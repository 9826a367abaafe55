"""A job of a scheduler in words, and how often the scheduler is asked for it."""

from __future__ import annotations

from clusterctl.errors import UnreachableError
from clusterctl.schedulers.scheduled import AGAIN_S, ENDED, QUEUED, RUNNING, JobWatch, NoRunError, ScheduledJob

JOB = ScheduledJob("Slurm", "12", RUNNING)


class Scheduler:
    """Says `job`, or fails with `error`; its clock stands."""

    def __init__(self) -> None:
        self.job = JOB
        self.error: Exception | None = None
        self.asked = 0
        self.t = 0.0

    def ask(self) -> ScheduledJob:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.job

    def watch(self) -> JobWatch:
        return JobWatch(self.ask, lambda: self.t)


def test_a_job_in_a_sentence() -> None:
    assert JOB.sentence == "Slurm job 12 is running"
    assert ScheduledJob("Slurm", "12", QUEUED, text="waiting").sentence == "Slurm job 12 is queued: waiting"
    assert ScheduledJob("Slurm", "12", ENDED, text="it failed").sentence == "Slurm job 12 has ended: it failed"


def test_the_document_has_what_is_known() -> None:
    assert JOB.to_json() == {"name": "slurm", "id": "12", "stage": "running"}


def test_a_job_without_a_run_says_where_to_look() -> None:
    job = ScheduledJob("Slurm", "12", RUNNING, output="/out")
    assert NoRunError(job).message == "Slurm job 12 is running, but its run has not begun yet"
    assert NoRunError(job).hint == "see what it prints: /out"
    assert NoRunError(ScheduledJob("Slurm", "12", QUEUED, text="x", output="/out")).hint is None


def test_a_job_is_asked_for_again_after_a_while_only() -> None:
    slurm = Scheduler()
    watch = slurm.watch()
    slurm.job = ScheduledJob("Slurm", "12", ENDED)
    slurm.t = AGAIN_S
    assert (watch.is_over(), slurm.asked) == (False, 1)
    slurm.t = AGAIN_S + 1
    assert (watch.is_over(), watch.is_over(), slurm.asked) == (True, True, 2)


def test_a_scheduler_that_does_not_answer_changes_nothing() -> None:
    slurm = Scheduler()
    watch = slurm.watch()
    slurm.error, slurm.t = UnreachableError("away"), AGAIN_S + 1
    assert (watch.now(), watch.now(), slurm.asked) == (JOB, JOB, 2)
