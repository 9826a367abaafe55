"""The job that a command means if it names none: the one that runs, else the one that ran last, else the newest."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.agent.node.jobs import LIVE, check_own, find_job, is_free, read_state, run_state
from clusterctl.common.answers import RanJob
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import JobPaths, find_jobs, job_directories

MOST_ENDED = 5  # the control machine needs more than one only if the nodes disagree


def choose_job(root: Path, ref: str | None, *, to_resume: bool = False) -> tuple[JobPaths, list[RanJob]]:
    """Return the job named by `ref`; for None the one of this node that is meant, and all that may be meant.

    `to_resume`: the one that ran last is meant, even if another is live. Raises AgentError like `find_job`.
    """
    if ref is not None:
        return find_job(root, ref), []
    newest = _newest_job(root)
    ran = sorted(_ran(root), key=lambda one: one["t"], reverse=True)
    live = [one for one in ran if one["live"]]
    first = next(iter(ran if to_resume else [*live, *ran]), None)
    known = [*live, *[one for one in ran if not one["live"]][:MOST_ENDED]]
    return (JobPaths(root / first["job"]) if first else newest), known


def _newest_job(root: Path) -> JobPaths:
    """Return the newest job. What other accounts have put into a shared ROOT_DIR does not count."""
    for job in job_directories(root):
        if job.dir.lstat().st_uid == os.getuid() and job.has_record():
            check_own(job)
            return job
    raise AgentError("there is no job", kind="no_job", hint="send one with clusterctl dispatch")


def _ran(root: Path) -> list[RanJob]:
    ran: list[RanJob] = []
    for job in find_jobs(root):
        name = job.newest_run()
        if name is None:
            continue
        run = job.run(name)
        try:
            t = run.spec.stat().st_mtime
        except FileNotFoundError:  # a start that was killed
            continue
        live = not is_free(job) and run_state(run, read_state(run)) in LIVE
        ran.append({"job": job.dir.name, "t": t, "live": live})
    return ran
