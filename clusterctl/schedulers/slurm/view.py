"""A Slurm job as seen from the machine that submitted it: while Slurm knows it, and from its record after that."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from clusterctl.common.files import read_json
from clusterctl.common.paths import find_jobs
from clusterctl.config import Settings
from clusterctl.config.host_sources import SlurmHosts
from clusterctl.errors import ClusterctlError, UnreachableError, UsageError
from clusterctl.schedulers.scheduled import ENDED, QUEUED, RUNNING, JobWatch, NoRunError, ScheduledJob
from clusterctl.schedulers.slurm.commands import Slurm, UnknownSlurmJob
from clusterctl.schedulers.slurm.hosts import INSIDE, outside, root_of_nodes, with_hosts, with_nodes
from clusterctl.schedulers.slurm.jobs import ENDING, SlurmJob
from clusterctl.schedulers.slurm.reasons import EndReason, ending, ending_in, waiting_for
from clusterctl.schedulers.slurm.records import SHARED, Records, SubmissionRecord
from clusterctl.schedulers.slurm.script import BLIND, RUN_PREFIX

NAME = "Slurm"
JOB_ID = re.compile(rf"(?:{RUN_PREFIX})?([0-9]{{1,10}}(?:_[0-9]{{1,10}})?)")
JOB_DIRECTORY = re.compile(r"(?:^|/)(JOB[0-9-]+)(?:/([0-9]+))?/?$")
ENDING_S = 5.0  # a job that is ending may know its outcome after a moment
POLL_S = 0.5
FORGOTTEN = EndReason("unknown", "how is not known, as Slurm has forgotten it")


def look_at(
    settings: Settings, source: SlurmHosts, environ: Mapping[str, str], ref: str | None
) -> tuple[Settings, JobWatch | None]:
    """Return the settings with the nodes of the job that `ref` means, and the job as Slurm sees it.

    `ref` is a Slurm job's id, the name of its run, or its job directory; None means the job of conf.py, that in whose
    allocation this is, or the one submitted last. Inside its allocation a job is judged by its nodes, not by Slurm.
    Raises NoRunError if the job has no nodes yet and had none before, or if nothing is known of those it had.
    """
    records = Records(settings.root_dir)
    job = _job_id(settings, source, environ, ref, records)
    if job == environ.get(INSIDE):
        return with_hosts(settings, SlurmHosts(job), environ), None
    slurm, record = Slurm(environ), records.find(job)
    watch = JobWatch(lambda: seen(slurm, job, record))
    now = watch.now()
    if now.stage == RUNNING:
        try:
            return with_hosts(settings, SlurmHosts(job), environ), watch
        except UnreachableError:
            now = watch.again()  # it may have ended meanwhile
            if now.stage == RUNNING:
                raise
    allocation = record.allocation() if record is not None else None
    if allocation is None:
        raise NoRunError(now)
    return with_nodes(settings, job, allocation.nodes), watch


def _job_id(
    settings: Settings, source: SlurmHosts, environ: Mapping[str, str], ref: str | None, records: Records
) -> str:
    named = JOB_ID.fullmatch(ref or "")
    if named:
        return named[1]
    if source.job is not None:
        return str(source.job)
    if INSIDE in environ:
        return environ[INSIDE]
    if ref is not None:
        return _job_of_directory(ref, Path(root_of_nodes(settings.root_dir).replace("{node}", "0")).expanduser())
    last = records.last()
    if last is None:
        raise outside(settings)
    return last.id


def _job_of_directory(ref: str, root: Path) -> str:
    """Return the Slurm job of the run in the job directory, or the beginning of its name, that `ref` is."""
    asked = JOB_DIRECTORY.search(ref)
    jobs = [job for job in find_jobs(root) if asked and job.dir.name.startswith(asked[1])]
    if asked and len(jobs) == 1:
        newest = jobs[0].newest_run() or ""
        known = read_json(jobs[0].run(f"{int(asked[2]):04d}" if asked[2] else newest).spec) or {}
        named = JOB_ID.fullmatch(str(known.get("name")))
        if named:
            return named[1]
    raise UsageError(
        f"{ref} is not of a Slurm job that clusterctl submitted",
        hint="name the Slurm job, such as 12; or run this in the allocation where it was started",
    )


def seen(slurm: Slurm, job: str, record: SubmissionRecord | None) -> ScheduledJob:
    """Return what Slurm says about a job, else what its record knows.

    Raises UnknownSlurmJob if neither knows it, UnreachableError if Slurm does not answer or has suspended the job.
    """
    try:
        known = _settled(slurm, job)
    except UnknownSlurmJob:
        if record is None:
            raise
        return _view(job, record, ENDED, _remembered(record))
    if known.is_queued:
        return _waiting(replace(known, id=job), record)
    if known.state == "CONFIGURING":
        return _view(job, record, QUEUED, {"text": "its nodes are being set up", "state": known.state})
    if known.state in ENDING:
        return _view(job, record, ENDED, {"text": "its last processes are being ended", "state": known.state})
    end = ending(known, record.words() if record else "")
    if end is not None:
        about = _about(_refused(known, end, record), known)
        if record is not None:
            record.save_end(about)
        return _view(job, record, ENDED, about)
    if known.state in ("SUSPENDED", "STOPPED"):
        raise UnreachableError(f"Slurm job {job} is suspended", hint=f"scontrol resume {job}")
    return _view(job, record, RUNNING, {"state": known.state})


def queued(settings: Settings, environ: Mapping[str, str]) -> list[ScheduledJob]:
    """Return the jobs that were submitted and wait for nodes; none if Slurm does not answer."""
    records = Records(settings.root_dir)
    if records.last() is None:
        return []
    with contextlib.suppress(ClusterctlError, ValueError):
        known = [(job, records.find(job.id)) for job in Slurm(environ).queued()]
        return [_waiting(job, record) for job, record in known if record is not None]
    return []


def _waiting(job: SlurmJob, record: SubmissionRecord | None) -> ScheduledJob:
    when = f"squeue --start -j {job.id} shows when it may start"
    return _view(job.id, record, QUEUED, {"text": waiting_for(job), "hint": when, "state": job.state})


def _settled(slurm: Slurm, job: str) -> SlurmJob:
    """Return a job. One that is ending is awaited for a moment."""
    deadline = time.monotonic() + ENDING_S
    known = slurm.job(job)
    while known.state in ENDING and time.monotonic() < deadline:
        time.sleep(POLL_S)
        known = slurm.job(job)
    return known


def _refused(job: SlurmJob, end: EndReason, record: SubmissionRecord | None) -> EndReason:
    """Return a better reason for the end of a job that did not see its mark."""
    if record is None or end.kind != "failed" or record.allocation() is not None:
        return end
    told = record.refusal()
    if told is None and job.exit_code == BLIND:
        told = f"ROOT_DIR is not shared: its first node cannot see {record.directory}"
    return EndReason("not_shared", told, SHARED) if told else end


def _about(end: EndReason, job: SlurmJob | None = None) -> dict[str, Any]:
    state, ended = (job.state, _moment(job.ended)) if job is not None else ("", None)
    return {"kind": end.kind, "text": end.text, "hint": end.hint, "state": state, "ended": ended}


def _moment(local: str | None) -> float | None:
    """Return a time as Slurm prints it in seconds since the epoch."""
    try:
        return datetime.fromisoformat(local).timestamp() if local else None
    except ValueError:
        return None


def _remembered(record: SubmissionRecord) -> Mapping[str, Any]:
    """Return what is known of the end of a job that Slurm forgot: what a command has learned, else its last words."""
    known = record.end()
    if {"kind", "text", "hint", "state", "ended"} <= set(known):
        return known
    return _about(ending_in(record.words()) or FORGOTTEN)


def _view(job: str, record: SubmissionRecord | None, stage: str, about: Mapping[str, Any]) -> ScheduledJob:
    output = record.output if record is not None else None
    return ScheduledJob(
        NAME,
        job,
        stage,
        run=f"{RUN_PREFIX}{job}" if record is not None else None,
        output=str(output) if output else None,
        **about,
    )


def cancel(settings: Settings, environ: Mapping[str, str], job: ScheduledJob) -> ScheduledJob:
    """Cancel a job; one that was queued only if it still is. Return what Slurm says after that."""
    slurm = Slurm(environ)
    slurm.cancel(job.id, only_queued=job.stage == QUEUED)
    return seen(slurm, job.id, Records(settings.root_dir).find(job.id))
