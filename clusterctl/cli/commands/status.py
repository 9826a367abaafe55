"""`clusterctl status` and `clusterctl jobs`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.cli.causes import first_cause_lines, warning_lines
from clusterctl.cli.console import Console, human_bytes, human_count, human_time, percent
from clusterctl.cli.invocation import Invocation, job_name, job_ref
from clusterctl.cli.pserver_counts import count_lines

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.cluster.answers import StatusAnswer
    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.members import Members
    from clusterctl.observe.status import JobStatus

HEADINGS = (
    *("node", "host", "role", "rank", "state", "restarts", "pass", "step"),
    *("loss", "samples/s", "wait", "cpu", "mem"),
)
NUMERIC = ("node", "rank", "restarts", "pass", "step", "loss", "samples/s", "wait", "cpu", "mem")
DROPPED_FIRST = ("host", "pass", "wait", "mem", "restarts")
JOB_HEADINGS = ("job", "state", "runs", "workspace", "content", "files", "size", "when", "nodes")
JOB_DROPPED_FIRST = ("content", "files", "workspace", "size")
WATCH_S = 1.0


def status(invocation: Invocation, job: str | None, *, watch: bool) -> None:
    from clusterctl.cluster import SeveralRunningError
    from clusterctl.observe.status import LIVE
    from clusterctl.observe.status import status as read

    if watch:
        invocation.console.stream()
    with invocation.cluster() as cluster:
        try:
            current = read(cluster, job_ref(cluster.settings, job))
        except SeveralRunningError as several:
            if watch:
                raise
            _show_all(invocation, cluster, several.jobs)
            return
        while watch and current.state in LIVE:
            invocation.console.record(_document(cluster, current))
            _show(invocation.console, cluster, current, clear=True)
            time.sleep(WATCH_S)
            current = read(cluster, current.job)
        _show(invocation.console, cluster, current, clear=False)
        invocation.console.finish(_document(cluster, current), _problem(current, len(cluster.nodes), watch))


def _show_all(invocation: Invocation, cluster: Cluster, jobs: Sequence[str]) -> None:
    """Show every job that is running; the JSON document has them under `jobs`."""
    from clusterctl.observe.status import status as read

    found = [read(cluster, job) for job in jobs]
    for current in found:
        _show(invocation.console, cluster, current, clear=False)
    errors = [error for current in found for error in [_problem(current, len(cluster.nodes), False)] if error]
    document = {"jobs": [_document(cluster, current) for current in found]}
    invocation.console.finish(document, errors[0] if errors else None)


def _problem(current: JobStatus, of: int, watch: bool) -> ClusterctlError | None:
    from clusterctl.errors import JobFailedError
    from clusterctl.observe.status import unheard

    if watch and not current.errors and current.state in ("failed", "lost"):
        return JobFailedError(f"{current.job} {'failed' if current.state == 'failed' else 'is lost'}")
    return unheard(current.errors, of)


def _document(cluster: Cluster, current: JobStatus) -> dict[str, Any]:
    return {
        "job": current.job,
        "run": current.run,
        "state": current.state,
        "job_workspace": job_name(cluster.settings, cluster.inventory, current.job),
        **current.members.to_json(),
        "resumed": (current.lead or {}).get("resumed"),
        **({"warnings": current.warnings} if current.warnings else {}),
        "processes": current.processes,
        "nodes": current.nodes,
    }


def _show(console: Console, cluster: Cluster, current: JobStatus, *, clear: bool) -> None:
    if console.json:
        return
    if clear:
        console.clear()
    console.say(headline(current))
    if current.processes:
        console.table(HEADINGS, [_cells(process) for process in current.processes], NUMERIC, DROPPED_FIRST)
    for line in (*count_lines(current.processes), *left_out_lines(current.members)):
        console.say(line)
    for name in (current.lead or {}).get("waits_for") or ():
        rejoin = f"clusterctl start --rejoin --job_workspace {current.job}"
        console.say(f"the run is waiting for {name}; once it is fixed: {rejoin}")
    ended = (current.lead or {}).get("ended")
    for line in first_cause_lines(cluster, current.job, ended["cause"] if ended else None):
        console.output(line)
    for line in warning_lines(current.warnings):
        console.warn(line)


def left_out_lines(members: Members) -> list[str]:
    """Return the nodes that are not in the run, one line per reason."""
    from clusterctl.inventory import nodeset

    by_reason: dict[str, list[int]] = {}
    for row in members.left_out:
        by_reason.setdefault(row["message"], []).append(row["node"])
    return [f"{nodeset(nodes)} not in this run (left out: {reason})" for reason, nodes in by_reason.items()]


def headline(current: JobStatus) -> str:
    parts = [current.job]
    if current.run:
        parts = [f"{current.job} run {int(current.run)}"]
        roles = [process["role"] for process in current.processes]
        mode = current.lead["mode"] if current.lead else None
        parts += [mode] if mode else []
        parts.append(f"{roles.count('pserver')} pservers, {roles.count('trainer')} trainers")
    parts.append(current.state)
    lead: StatusAnswer = current.lead or {}
    resumed = lead.get("resumed")
    if resumed:
        of = f"{other} run" if (other := resumed.get("job")) else "run"
        parts.append(f"resumed from step {resumed['step']:,} of {of} {int(resumed['run'])}")
    if started := lead.get("started"):
        ended = lead.get("ended")
        until = ended["t"] if ended else lead["now"] or 0.0
        parts.append(human_time(max(0.0, until - started)))
    return " · ".join(parts)


def _cells(process: dict[str, Any]) -> list[str]:
    loss = process["loss"]
    memory = process["memory"]
    passes = process["pass"]
    return [
        str(process["node"]),
        process["host"],
        process["role"],
        str(process["rank"]),
        process["state"],
        str(process["restarts"] or ""),
        "" if passes is None else str(passes),
        "" if process["step"] is None else human_count(process["step"]),
        "" if loss is None else f"{loss:.3f}",
        "" if process["samples_per_s"] is None else human_count(process["samples_per_s"]),
        "" if process["wait"] is None else percent(process["wait"]),
        "" if process["cpu"] is None else percent(process["cpu"]),
        "" if memory is None else human_bytes(memory),
    ]


def jobs(invocation: Invocation) -> None:
    from clusterctl.observe.status import jobs as read
    from clusterctl.observe.status import unheard

    with invocation.cluster() as cluster:
        found, errors = read(cluster)
        if not found:
            invocation.console.say("no jobs; clusterctl dispatch sends a workspace")
        elif not invocation.console.json:
            cells = [_job_cells(job, len(cluster.nodes)) for job in found]
            invocation.console.table(JOB_HEADINGS, cells, ("runs", "files"), JOB_DROPPED_FIRST)
        invocation.console.finish({"jobs": found}, unheard(errors, len(cluster.nodes)))


def _job_cells(job: dict[str, Any], of: int) -> list[str]:
    when = datetime.datetime.fromtimestamp(job["t"]).strftime("%Y-%m-%d %H:%M")
    return [
        job["job"],
        job["state"] + (" (warning)" if job["runs"] and "warnings" in job["runs"][-1] else ""),
        str(len(job["runs"])),
        job["workspace"],
        job["content"][:8],
        str(job["files"]),
        human_bytes(job["bytes"]),
        when,
        f"{len(job['nodes'])}/{of}",
    ]
