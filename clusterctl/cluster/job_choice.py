"""The job that a command means if it names none, decided from the answers of all nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict

from clusterctl.common.answers import RanJob
from clusterctl.common.paths import job_key
from clusterctl.common.requests import JobId
from clusterctl.common.schema import NotRequired
from clusterctl.errors import UsageError


class JobChoice(TypedDict):
    """The part of a node's answer to a request without a job: its own choice, and the jobs that it chose from."""

    job: JobId
    ran: NotRequired[list[RanJob] | None]


class SeveralRunningError(UsageError):
    """Several jobs are running: the user has to name one of `jobs`."""

    def __init__(self, jobs: Sequence[str]) -> None:
        names = ", ".join(jobs)
        hint = f"name one of them, such as {jobs[0]}; clusterctl status shows them all"
        super().__init__(f"{len(jobs)} jobs are running: {names}", hint=hint, details={"jobs": list(jobs)})
        self.jobs = list(jobs)


def choose_job(answers: Sequence[JobChoice], *, to_resume: bool = False) -> str:
    """Return the job that runs on any node, else the one that ran last, else the newest.

    `to_resume`: the one that ran last is meant, even if others are live. Otherwise raises SeveralRunningError if
    several are. Clocks of nodes differ: the median of a job's times counts.
    """
    times: dict[str, list[float]] = {}
    for row in (row for answer in answers for row in answer.get("ran") or ()):
        times.setdefault(row["job"], []).append(row["t"])
    live = {row["job"] for answer in answers for row in answer.get("ran") or () if row["live"]}
    if live and not to_resume:
        if len(live) > 1:
            raise SeveralRunningError(sorted(live, key=job_key, reverse=True))
        return live.pop()
    if times:
        return max(times, key=lambda job: (statistics.median(times[job]), job_key(job)))
    return max((answer["job"] for answer in answers), key=job_key)
