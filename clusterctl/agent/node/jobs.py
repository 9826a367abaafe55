"""The jobs of this node, their runs, and their present state."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from clusterctl.agent.gpus.of_run import add_gpus
from clusterctl.common.errors import AgentError
from clusterctl.common.files import is_locked, read_json, write_json
from clusterctl.common.paths import JobPaths, RunPaths, expand, find_jobs, is_job_id, job_directories
from clusterctl.common.procfs import LIVE_STATES, Identity, is_alive
from clusterctl.common.run_spec import RunSpec, RunSummary
from clusterctl.common.safe_json import dumps
from clusterctl.common.schema import SchemaError

Spec = TypeVar("Spec", RunSpec, RunSummary)

STARTING, RUNNING, LOST, DISPATCHED = "starting", "running", "lost", "dispatched"
LIVE = (STARTING, RUNNING)
SUMMED_UP = ("loss", "metrics")  # what a list of jobs shows of a trainer's figures
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


def need_spec(run: RunPaths) -> RunSpec:
    """Return the spec of a run. Raises AgentError if it is missing or damaged."""
    return _read(run, RunSpec)


def read_summary(run: RunPaths) -> RunSummary | None:
    """Return the summary of a run's spec, or None if it is missing or damaged."""
    try:
        return _read(run, RunSummary)
    except AgentError:
        return None


def _read(run: RunPaths, kind: type[Spec]) -> Spec:
    value = read_json(run.spec)
    if value is None:
        raise AgentError(f"{run.spec} is missing or damaged")
    try:
        return kind.from_json(value)
    except SchemaError as exc:
        raise AgentError(f"{run.spec} is not the spec of a run: {exc}") from exc


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
    if not is_alive(supervisor_of(state)):
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


def describe(job: JobPaths, run_name: str | None = None, *, over: bool = False, gpus: bool = False) -> dict[str, Any]:
    """Return everything that `status` needs from this node; with `gpus` also the use of the GPUs, if the run has any.

    `over`: as for `run_state`.
    """
    run = pick_run(job, run_name)
    if run is None or not run.spec.is_file():
        return {**_about(job), "run": None, "state": DISPATCHED, "processes": []}
    spec = _read(run, RunSummary)
    answer = describe_run(run, spec, over=over)
    if gpus and spec.gpus is not None:
        add_gpus(run, spec, answer, live=answer["state"] in LIVE and not over)
    return answer


def _about(job: JobPaths) -> dict[str, Any]:
    return {"job": job.dir.name, "dir": str(job.dir), "record": read_json(job.record)}


def describe_run(run: RunPaths, spec: RunSpec | RunSummary, *, over: bool = False) -> dict[str, Any]:
    """Do the same as `describe` for a run whose spec has been read."""
    state = read_state(run)
    now = run_state(run, state, over=over)
    engine = spec.training.engine
    return {
        **_about(run.job),
        "run": run.run,
        "state": now,
        **membership(spec),
        "mode": spec.training.mode if engine == "clusterctl" else engine,
        "resumed": resumed(spec),
        "phase": state.get("phase"),
        "waits_for": state.get("waits_for", []),
        **({"cut_dropped": state["cut_dropped"]} if state.get("cut_dropped") and now in LIVE else {}),
        **({"warnings": warnings} if (warnings := warnings_of(state)) else {}),
        "ended": state.get("ended"),
        "last_event": state.get("last_event"),
        "processes": processes_now(state, now == LOST, over=over),
        "supervisor": supervisor_of(state),
        "now": time.time(),
    }


def warnings_of(state: dict[str, Any]) -> list[dict[str, str]]:
    """Return the warnings of a run so far. Older versions only recorded them in the event of its end."""
    warnings: list[dict[str, str]] = state.get("warnings") or (state.get("ended") or {}).get("warnings") or []
    return warnings


def membership(spec: RunSpec | RunSummary) -> dict[str, Any]:
    """Return a run's name, if it has one, its start, its nodes, and those left out (`[{"node", "message"}, ...]`)."""
    left_out = [node.to_json() for node in spec.left_out]
    name = {"name": spec.name} if spec.name else {}
    return {"started": spec.t, "members": list(spec.members) or None, "left_out": left_out, **name}


def resumed(spec: RunSpec | RunSummary) -> dict[str, Any] | None:
    """Return the checkpoint from which a run was resumed: `run`, `tag`, `step`, `pass`, and `job` if it is another."""
    resume = spec.saving.resume
    if resume is None:
        return None
    of = {"job": resume.job} if resume.job else {}
    return {**of, "run": resume.run, "tag": resume.tag, "step": resume.step, "pass": resume.pass_}


def list_jobs(root: Path, *, over: bool = False) -> list[dict[str, Any]]:
    """Return all jobs of this node, newest first, each with its runs. `over`: as for `run_state`."""
    jobs = []
    for job in find_jobs(root):
        runs = [_describe_run(job.run(name), over=over) for name in sorted(job.run_names(), key=int)]
        jobs.append({"job": job.dir.name, "dir": str(job.dir), "record": read_json(job.record), "runs": runs})
    return jobs


def _describe_run(run: RunPaths, *, over: bool) -> dict[str, Any]:
    spec, state = read_summary(run), read_state(run)
    now = run_state(run, state, over=over)
    about = {"run": run.run, "state": now, **(membership(spec) if spec else {})}
    figures = _figures(spec, state, live=now in LIVE) if spec else {}
    figures["warnings"] = warnings_of(state)
    return {**about, **{key: value for key, value in figures.items() if value}}


def _figures(spec: RunSpec | RunSummary, state: dict[str, Any], *, live: bool) -> dict[str, Any]:
    """Return what a list of jobs shows about a run: its arguments, its duration and the figures of its trainers.

    `env` is there to hide its values in the arguments.
    """
    until = time.time() if live else (state.get("ended") or {}).get("t") or state.get("t")
    best = spec.saving.keep_best
    return {
        "arguments": list(spec.arguments),
        "env": dict(spec.env) if spec.arguments else None,
        "seconds": max(0.0, until - spec.t) if until and spec.t else None,
        "keep_best": best.to_json() if best else None,
        "trainers": [
            {key: process[key] for key in SUMMED_UP if key in process}
            for process in state["processes"]
            if process["role"] == "trainer" and any(key in process for key in SUMMED_UP)
        ],
    }


def reason_to_stop(run: RunPaths) -> str | None:
    """Return the reason for a stop; None if the user asked for it."""
    written = read_json(run.stop_reason)
    return str(written["message"]) if written else None


def mark_ended(run: RunPaths, state: str, message: str) -> None:
    """Write the final event and state of a run whose supervisor could not. `late` marks it as no sign of life."""
    spec = read_summary(run)
    event = {
        "v": 1,
        "t": time.time(),
        "event": "ended",
        "node": spec.node if spec else None,
        "state": state,
        "cause": {"kind": state, "message": message},
        "late": True,
    }
    with run.events.open("ab") as f:
        f.write(dumps(event) + b"\n")
    known = read_state(run)
    for process in known["processes"]:
        if process["state"] in LIVE_STATES or process["state"] == "waiting":
            process["state"] = "stopped"
    write_json(run.state, {**known, "ended": event})
