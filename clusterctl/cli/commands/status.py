"""`clusterctl status`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.api.scheduled import scheduled_part
from clusterctl.api.status import Status
from clusterctl.api.status import status as read
from clusterctl.cli import style
from clusterctl.cli.causes import first_cause_lines, warning_lines
from clusterctl.cli.commands.scheduled import show_status, tell_end
from clusterctl.cli.console import human_time
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.pserver_counts import count_lines
from clusterctl.cli.screen.gpu_lines import cells as gpu_cells
from clusterctl.cli.screen.gpu_lines import headings as gpu_headings
from clusterctl.cli.screen.gpu_lines import user_lines
from clusterctl.cli.screen.notes import note_lines
from clusterctl.cli.screen.table import MOST_METRICS, figure_cells, metric_cells, metric_headings, metric_names
from clusterctl.cli.screen.watch import watch
from clusterctl.cluster import Cluster, SeveralRunningError
from clusterctl.cluster.answers import StatusFacts
from clusterctl.common.schema import typed
from clusterctl.documents.jobs import RunningJobs
from clusterctl.errors import ClusterctlError, JobFailedError
from clusterctl.inventory import nodeset
from clusterctl.observe.record.marks import by_our_clock
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.model import ProcessRecord
from clusterctl.observe.record.references import run_title
from clusterctl.observe.record.status import LIVE, JobStatus
from clusterctl.schedulers import NoRunError

FIGURES = ("pass", "step", "loss", "samples/s", "wait", "cpu", "mem")
HEADINGS = ("node", "host", "role", "rank", "state", "restarts", *FIGURES)
NUMERIC = ("node", "rank", "restarts", *FIGURES)
DROPPED_FIRST = ("host", "pass", "wait", "mem", "restarts")
WATCH_S = 1.0


def status(invocation: Invocation, job: str | None, *, watch: bool) -> None:
    if watch:
        invocation.console.stream()
    try:
        _status(invocation, job, watch=watch)
    except NoRunError as none:
        show_status(invocation, none.job)


def _status(invocation: Invocation, job: str | None, *, watch: bool) -> None:
    with invocation.cluster_of(job) as cluster:
        try:
            named = invocation.run_of(cluster, job)
            current = read(cluster, named.job, named.run, gpus=not watch)
        except SeveralRunningError as several:
            if watch:
                raise
            _show_all(invocation, cluster, several.jobs)
            return
        if watch and current.state in LIVE and invocation.console.live:
            current = _watched(invocation, cluster, current.known, named.run)
            if current.state in LIVE:
                return
        while watch and current.state in LIVE:
            invocation.console.record(current.document)
            _show(invocation, cluster, current.known, clear=True)
            time.sleep(WATCH_S)
            current = read(cluster, current.job, named.run)
        _show(invocation, cluster, current.known, clear=False)
        document: Mapping[str, Any] = {**current.document, **scheduled_part(invocation.scheduled)}
        invocation.console.finish(document, _problem(current, watch))


def _watched(invocation: Invocation, cluster: Cluster, current: JobStatus, run: str | None) -> Status:
    """Show the live screen; return the status after it. Say so if the user left a run that continues."""
    ended = watch(invocation.console, cluster, current, " · ".join(_title(current)[:-1]))
    after = read(cluster, current.job, run)
    if not ended and after.state in LIVE:
        invocation.console.say(f"{current.job} continues     clusterctl status --watch {current.job} shows it again")
    return after


def _show_all(invocation: Invocation, cluster: Cluster, jobs: Sequence[str]) -> None:
    """Show every job that is running; the JSON document has them under `jobs`."""
    found = [read(cluster, job, gpus=True) for job in jobs]
    for current in found:
        _show(invocation, cluster, current.known, clear=False)
    document = typed(RunningJobs, {"jobs": [current.document for current in found]})
    invocation.console.finish(document, next((one.problem for one in found if one.problem), None))


def _problem(current: Status, watch: bool) -> ClusterctlError | None:
    if watch and not current.errors and current.state in ("failed", "lost"):
        return JobFailedError(f"{current.job} {'failed' if current.state == 'failed' else 'is lost'}")
    return current.problem


def _show(invocation: Invocation, cluster: Cluster, current: JobStatus, *, clear: bool) -> None:
    console = invocation.console
    if console.json:
        return
    if clear:
        console.clear()
    console.say(headline(current))
    explained = tell_end(invocation)
    if current.processes:
        names = metric_names(current.processes, MOST_METRICS)
        own = metric_headings(names)
        gpus = gpu_headings(current.processes)
        rows = [[*_cells(process, gpus), *metric_cells(process.figures, names)] for process in current.processes]
        dropped = (*own[:0:-1], *DROPPED_FIRST, *own[:1])
        console.table((*HEADINGS, *gpus, *own), rows, (*NUMERIC, "gpu mem", *own), dropped)
    for line in (*count_lines(current.processes), *left_out_lines(current.members)):
        console.say(line)
    for line in (*note_lines(current.processes, current.cut_dropped), *user_lines(current.nodes)):
        console.say(style.warning(line))
    for name in (current.lead or {}).get("waits_for") or ():
        rejoin = f"clusterctl start --rejoin --job_workspace {current.job}"
        console.say(f"the run is waiting for {name}; once it is fixed: {rejoin}")
    ended = (current.lead or {}).get("ended")
    cause = ended["cause"] if ended and not explained else None
    for line in first_cause_lines(cluster, current.job, current.run, cause):
        console.output(line)
    for line in warning_lines(by_our_clock(current.warnings, current.offset_s)):
        console.warn(line)


def left_out_lines(members: Members) -> list[str]:
    """Return the nodes that are not in the run, one line per reason."""
    by_reason: dict[str, list[int]] = {}
    for row in members.left_out:
        by_reason.setdefault(row["message"], []).append(row["node"])
    return [f"{nodeset(nodes)} not in this run (left out: {reason})" for reason, nodes in by_reason.items()]


def _title(current: JobStatus) -> list[str]:
    """Return the job, its run, mode and counts of processes."""
    if not current.run:
        return [current.job]
    roles = [process.role for process in current.processes]
    mode = current.lead["mode"] if current.lead else None
    counts = f"{roles.count('pserver')} pservers, {roles.count('trainer')} trainers"
    return [run_title(current.job, current.members), *([mode] if mode else []), counts]


def headline(current: JobStatus) -> str:
    parts = _title(current)
    parts.append(style.state(current.state))
    lead: StatusFacts = current.lead or {}
    resumed = lead.get("resumed")
    if resumed:
        of = f"{other} run" if (other := resumed.get("job")) else "run"
        parts.append(f"resumed from step {resumed['step']:,} of {of} {int(resumed['run'])}")
    if started := lead.get("started"):
        ended = lead.get("ended")
        until = ended["t"] if ended else lead["now"] or 0.0
        parts.append(human_time(max(0.0, until - started)))
    return style.join(" · ", parts)


def _cells(process: ProcessRecord, gpus: Sequence[str]) -> list[str]:
    by_heading = {**figure_cells(process.figures), **gpu_cells(process.figures)}
    return [
        str(process.node.id),
        process.node.where,
        style.process(process.role, process.role),
        str(process.rank),
        style.state(process.state),
        str(process.restarts or ""),
        *(by_heading[heading] for heading in (*FIGURES, *gpus)),
    ]
