"""The specs of runs on this node, and what `status` and `jobs` show of runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.agent.node.jobs import (
    DISPATCHED,
    LIVE,
    LOST,
    pick_run,
    processes_now,
    read_state,
    run_state,
    supervisor_of,
    warnings_of,
)
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import JobPaths, RunPaths, find_jobs
from clusterctl.common.procfs import LIVE_STATES
from clusterctl.common.run_spec import RunSpec, RunSummary
from clusterctl.common.safe_json import dumps
from clusterctl.common.schema import SchemaError

Spec = TypeVar("Spec", RunSpec, RunSummary)

SUMMED_UP = ("loss", "metrics")  # what a list of jobs shows of a trainer's figures


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


def find_run(job: JobPaths, run_name: str | None) -> tuple[RunPaths, RunSummary] | None:
    """Return the run of this name (None: the newest) with the summary of its spec, or None if the job has no such run.

    Raises AgentError if its spec is damaged.
    """
    run = pick_run(job, run_name)
    return None if run is None or not run.spec.is_file() else (run, _read(run, RunSummary))


def describe_dispatched(job: JobPaths) -> dict[str, Any]:
    """Return what `status` shows of a job without a run."""
    return {**_about(job), "run": None, "state": DISPATCHED, "processes": []}


def _about(job: JobPaths) -> dict[str, Any]:
    return {"job": job.dir.name, "dir": str(job.dir), "record": read_json(job.record)}


def describe_run(run: RunPaths, spec: RunSpec | RunSummary, *, over: bool = False) -> dict[str, Any]:
    """Return the state of a run and of its processes. `over`: as for `run_state`."""
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
