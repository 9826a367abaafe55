"""`clusterctl status` and `clusterctl jobs`."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import Console, human_bytes, human_count, human_time, percent
from clusterctl.cli.session import Session, job_name, job_ref

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.observe.status import JobStatus

HEADINGS = ("node", "host", "role", "rank", "state", "pass", "step", "loss", "samples/s", "wait", "cpu", "mem")
NUMERIC = ("node", "rank", "pass", "step", "loss", "samples/s", "wait", "cpu", "mem")
WATCH_S = 1.0


def status(session: Session, job: str | None, *, watch: bool) -> None:
    from clusterctl.observe.status import LIVE, check_reached
    from clusterctl.observe.status import status as read

    with session.cluster() as cluster:
        ref = job_ref(cluster.settings, job)
        seen = read(cluster, ref)
        while watch and seen.state in LIVE:
            _show(session, cluster, seen, redraw=True)
            time.sleep(WATCH_S)
            seen = read(cluster, seen.job)
        _show(session, cluster, seen, redraw=False)
        check_reached(seen.errors)
        if watch and seen.state in ("failed", "lost"):
            from clusterctl.errors import JobFailedError

            raise JobFailedError(f"{seen.job} has {seen.state}")


def _show(session: Session, cluster: Cluster, seen: JobStatus, *, redraw: bool) -> None:
    console = session.console
    if redraw and console.live:
        console.say("\x1b[H\x1b[2J" + headline(cluster, seen))
    elif not console.json:
        console.say(headline(cluster, seen))
    document = {
        "job": seen.job,
        "run": seen.run,
        "state": seen.state,
        "job_workspace": job_name(cluster.settings, cluster.inventory, seen.job),
        "processes": seen.processes,
        "nodes": seen.nodes,
    }
    console.record(document) if redraw else console.document(document)
    if seen.processes and not console.json:
        console.table(HEADINGS, [_cells(process) for process in seen.processes], NUMERIC)
    if seen.lead and seen.lead.get("ended") and not console.json:
        show_cause(console, seen.lead["ended"].get("cause"))


def headline(cluster: Cluster, seen: JobStatus) -> str:
    parts = [seen.job]
    if seen.run:
        parts = [f"{seen.job} run {int(seen.run)}"]
        roles = [process["role"] for process in seen.processes]
        parts.append(str(cluster.settings.mode))
        parts.append(f"{roles.count('pserver')} pservers, {roles.count('trainer')} trainers")
    parts.append(seen.state)
    lead = seen.lead or {}
    if lead.get("started"):
        until = lead["ended"]["t"] if lead.get("ended") else lead["now"]
        parts.append(human_time(max(0.0, until - lead["started"])))
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
        "" if passes is None else str(passes),
        "" if process["step"] is None else human_count(process["step"]),
        "" if loss is None else f"{loss:.3f}",
        "" if process["samples_per_s"] is None else human_count(process["samples_per_s"]),
        "" if process["wait"] is None else percent(process["wait"]),
        "" if process["cpu"] is None else percent(process["cpu"]),
        "" if memory is None else human_bytes(memory),
    ]


def show_cause(console: Console, cause: dict[str, Any] | None) -> None:
    from clusterctl.cli.console import clean

    if not cause:
        return
    who = f"{cause['role']}{cause['rank']}@node{cause['node']} " if cause.get("role") else ""
    console.say(f"cause: {who}{clean(str(cause.get('message', '')))}")
    for line in cause.get("tail") or ():
        console.say(f"  | {clean(line)}")


def jobs(session: Session) -> None:
    from clusterctl.observe.status import check_reached
    from clusterctl.observe.status import jobs as read

    with session.cluster() as cluster:
        found, errors = read(cluster)
        session.console.document({"jobs": found})
        if not found:
            session.console.say("no jobs; clusterctl dispatch sends a workspace")
        elif not session.console.json:
            headings = ("job", "state", "runs", "workspace", "content", "files", "size", "when", "nodes")
            session.console.table(headings, [_job_cells(job, len(cluster.nodes)) for job in found], ("runs", "files"))
        check_reached(errors)


def _job_cells(job: dict[str, Any], of: int) -> list[str]:
    when = datetime.datetime.fromtimestamp(job["t"]).strftime("%Y-%m-%d %H:%M")
    return [
        job["job"],
        job["state"],
        str(len(job["runs"])),
        job["workspace"],
        job["content"][:8],
        str(job["files"]),
        human_bytes(job["bytes"]),
        when,
        f"{len(job['nodes'])}/{of}",
    ]
