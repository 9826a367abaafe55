"""A job of a scheduler seen from outside it, which may wait for nodes or have lost them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clusterctl import schedulers
from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.documents.jobs import ScheduledPart, StatusDocument, StopDocument, WhyNoRun
from clusterctl.errors import NodeError
from clusterctl.observe.record import references
from clusterctl.observe.record.references import Reference, need_newest
from clusterctl.schedulers import JobWatch, NoRunError, ScheduledJob
from clusterctl.schedulers.scheduled import ENDS

LINES = 10
TAIL_BYTES = 1 << 16
STATES = {"succeeded": "succeeded", "cancelled": "stopped", "unknown": "unknown", "": "unknown"}


def run_of(cluster: Cluster, scheduled: JobWatch | None, text: str | None, number: int | None = None) -> Reference:
    """Return a run as `references.run_of` does. That of a scheduler's job may be named by the job's id, or not at all.

    Raises NoRunError if that job has no run yet.
    """
    job = scheduled.now() if scheduled is not None else None
    if job is None or job.run is None or text not in (None, job.id, job.run):
        return references.run_of(cluster, text, number)

    named = references.run_of(cluster, job.run, number)
    if not named.chosen:
        raise NoRunError(job)
    return named


def job_of(cluster: Cluster, scheduled: JobWatch | None, text: str | None) -> str | None:
    """Return the job of `run_of`. Raises UsageError if the text names another run of it than the newest."""
    return need_newest(cluster, run_of(cluster, scheduled, text))


def need_nodes(scheduled: JobWatch | None) -> None:
    """Raise NoRunError if the nodes of the job may be those of others by now, for what acts on them."""
    if scheduled is not None and scheduled.is_over():
        raise NoRunError(scheduled.now())


def state_of(job: ScheduledJob) -> str:
    """Return the state of a job without a run, as `status` shows it."""
    if job.stage != "ended":
        return "queued" if job.stage == "queued" else "starting"
    return STATES.get(job.kind, "failed")


def was_ended(job: ScheduledJob) -> bool:
    """Return True if the scheduler, or a user through it, has ended the job, and not its script."""
    return job.stage == "ended" and job.kind in ENDS


def cancel(settings: Settings, environ: Mapping[str, str], job: ScheduledJob) -> ScheduledJob:
    """Cancel a job that waits, or whose run has not begun, and return it as it is then.

    One that has ended stays as it is. One that was queued may run by now, and has to be stopped like any other.
    """
    if job.stage == "ended":
        return job
    after = schedulers.cancel(settings, environ, job)
    if after.stage != "ended" and (job.stage, after.stage) != ("queued", "running"):
        raise NodeError(f"{after.name} is still {after.stage}", hint=f"try scancel {job.id}")
    return after


def printed_last(job: ScheduledJob) -> list[str]:
    """Return the last lines that the script of a failed job printed; nothing if they cannot be read."""
    if job.stage != "ended" or job.kind == "succeeded":
        return []
    try:
        with Path(job.output or "/dev/null").open("rb") as f:
            f.seek(max(0, f.seek(0, 2) - TAIL_BYTES))
            return f.read().decode(errors="replace").splitlines()[-LINES:]
    except OSError:
        return []


def scheduled_part(scheduled: JobWatch | None) -> ScheduledPart:
    """Return what a document says about the job of a scheduler: nothing if there is no such job."""
    return {"scheduler": scheduled.now().to_json()} if scheduled is not None else {}


def status_json(job: ScheduledJob) -> StatusDocument:
    """Return the document of `status --json` for a job that has no run."""
    return {
        "job": None,
        "run": None,
        "members": [],
        "left_out": [],
        "nodes": [],
        "job_workspace": None,
        "resumed": None,
        "processes": [],
        "state": state_of(job),
        "scheduler": job.to_json(),
    }


def why_json(job: ScheduledJob, lines: list[str]) -> WhyNoRun:
    """Return the document of `why --json` for a job that has no run; `lines` are those of `printed_last`."""
    return {
        "job": None,
        "run": None,
        "state": state_of(job),
        "cause": None,
        "advice": job.hint,
        "lines": lines,
        "scheduler": job.to_json(),
    }


def stop_json(job: ScheduledJob) -> StopDocument:
    """Return the document of `stop --json` for a job that was cancelled."""
    return {
        "job": None,
        "run": None,
        "members": [],
        "left_out": [],
        "nodes": [],
        "survivors": 0,
        "scheduler": job.to_json(),
    }
