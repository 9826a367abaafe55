"""The jobs of this node, their runs, and the present state of these. What needs the spec of a run is in `runs.py`."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Any

from clusterctl.common.answers import RanJob
from clusterctl.common.errors import AgentError
from clusterctl.common.events import RunWarning
from clusterctl.common.files import is_locked, read_json
from clusterctl.common.paths import JobPaths, RunPaths, expand, find_jobs, is_job_id, job_directories
from clusterctl.common.procfs import LIVE_STATES, Identity, is_alive

STARTING, RUNNING, LOST, DISPATCHED = "starting", "running", "lost", "dispatched"
LIVE = (STARTING, RUNNING)
LIST_JOBS = "clusterctl jobs lists the jobs on the nodes"


def find_job(root: Path, ref: str) -> JobPaths:
    """Return the job named by `ref`: an id, its unique prefix, its directory, or the name of an adopted directory.

    Raises AgentError if no job matches, if several do, or if another account owns the job or can write to it.
    """
    if "/" in ref or ref.startswith("~"):
        job = JobPaths(expand(ref))
        if not job.record.is_file():
            raise AgentError(f"{ref} is not a job directory", kind="no_job", hint=LIST_JOBS)
        check_own(job)
        ours = root / job.dir.name  # one path per job: its processes are found by it
        return JobPaths(ours) if ours.exists() and ours.samefile(job.dir) else job
    jobs = list(find_jobs(root))
    exact = [job for job in jobs if job.dir.name == ref]
    matches = [job for job in jobs if is_job_id(job.dir.name) and job.dir.name.startswith(ref)]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        names = ", ".join(job.dir.name for job in matches)
        raise AgentError(f"{ref} is ambiguous: {names}", kind="usage")
    named = next((job for job in job_directories(root) if job.dir.name == ref), None)
    if named is not None and named.has_record():
        check_own(named)
    raise AgentError(f"there is no job {ref}", kind="no_job", hint=LIST_JOBS)


def check_own(job: JobPaths) -> None:
    """Raise AgentError if another account owns a job directory or can write to it."""
    if not job.is_own():
        hint = f"if you trust what is in it: chmod go-w {quote(str(job.dir))} {quote(str(job.meta))}"
        raise AgentError(f"{job.dir} belongs to another account, or others can write to it", kind="refused", hint=hint)


def pick_run(job: JobPaths, run: str | None = None) -> RunPaths | None:
    """Return the named run, else the newest; None if the job was never started."""
    name = run or job.newest_run()
    return job.run(name) if name else None


def is_free(job: JobPaths) -> bool:
    """Return True if no start, supervisor or guardian holds the job's lock."""
    return not is_locked(job.lock)


def read_state(run: RunPaths) -> dict[str, Any]:
    """Return the state that the supervisor wrote last; the final one if it is no longer alive."""
    nothing: dict[str, Any] = {"processes": [], "supervisor": None}
    state = read_json(run.state) or nothing
    if not state.get("ended") and not is_alive(supervisor_of(state)):
        state = read_json(run.state) or nothing  # it may have written its final state in between
    return dict(state)


def supervisor_of(state: dict[str, Any]) -> Identity | None:
    identity = state.get("supervisor")
    return Identity(*identity) if identity else None


def run_state(run: RunPaths, state: dict[str, Any], *, over: bool = False) -> str:
    """Return this node's view of a run, from its state file and from the processes that are alive.

    `over`: none of them is, by the word of the scheduler whose machines they ran on. This machine is another one, and
    its pids and locks say nothing.
    """
    if state.get("ended"):
        return str(state["ended"]["state"])
    if over:
        return LOST
    if supervisor_of(state) is None and not is_free(run.job):
        return STARTING  # the supervisor is not up yet
    if not is_alive(supervisor_of(state)) or state.get("away"):
        return LOST
    if state.get("phase") is None:
        waiting = any(p["state"] in ("waiting", "starting") for p in state["processes"])
        return STARTING if waiting else RUNNING
    return STARTING if state["phase"] in ("gathering", "pservers", "trainers") else RUNNING


def processes_now(state: dict[str, Any], lost: bool, *, over: bool = False) -> list[dict[str, Any]]:
    """Return the recorded processes, with those that are recorded as alive checked against /proc.

    `over`: as for `run_state`.
    """
    checked = []
    for recorded in state["processes"]:
        process = {key: value for key, value in recorded.items() if key != "identity"}
        identity = recorded.get("identity")
        gone = process["state"] in LIVE_STATES and (over or not (identity and is_alive(Identity(*identity))))
        if gone or (lost and process["state"] == "waiting"):
            process.update(state=LOST, cpu=None, memory=None)
        checked.append(process)
    return checked


def warnings_of(state: dict[str, Any]) -> list[RunWarning]:
    """Return the warnings of a run so far. Older versions only recorded them in the event of its end."""
    warnings: list[RunWarning] = state.get("warnings") or (state.get("ended") or {}).get("warnings") or []
    return warnings


def reason_to_stop(run: RunPaths) -> str | None:
    """Return the reason for a stop; None if the user asked for it."""
    written = read_json(run.stop_reason)
    return str(written["message"]) if written else None


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
