"""`clusterctl jobs`: the jobs on the nodes, each with its newest run."""

from __future__ import annotations

import datetime
import shlex

from clusterctl.api.operations.jobs import known_jobs, to_json, waiting_jobs
from clusterctl.cli import style
from clusterctl.cli.console import human_bytes, human_time
from clusterctl.cli.invocation import Invocation
from clusterctl.observe.record.model import JobOverview, MetricValues, RunOverview
from clusterctl.observe.record.secrets import HIDDEN

COLUMNS = (
    *("job", "name", "state", "runs", "took", "loss", "metric", "best", "more metrics", "arguments"),
    *("workspace", "content", "files", "size", "when", "nodes"),
)
NUMERIC = ("runs", "took", "loss", "best", "files")
DROPPED_FIRST = (
    *("content", "files", "size", "workspace", "more metrics", "when", "nodes", "arguments", "runs", "best"),
    *("took", "metric"),
)
ALWAYS = ("job", "state", "runs", "workspace", "content", "files", "size", "when", "nodes")
WARNED = style.warning(" (warning)")
LONGEST = 40  # characters of a cell


def jobs(invocation: Invocation) -> None:
    cluster, state_of = invocation.cluster_of_all()
    waiting = waiting_jobs(invocation.settings(), invocation.environ)
    for job in waiting:
        invocation.console.say(job.sentence)
    if cluster is None:
        invocation.console.document(to_json([], waiting))
        if not waiting:
            invocation.console.say("no jobs; clusterctl submit hands one to Slurm")
        return
    with cluster:
        known = known_jobs(cluster, state_of)
        if not known.jobs and not waiting:
            invocation.console.say("no jobs; clusterctl dispatch sends a workspace")
        elif known.jobs and not invocation.console.json:
            rows = [_cells(job, len(cluster.nodes)) for job in known.jobs]
            shown = [at for at, name in enumerate(COLUMNS) if name in ALWAYS or any(row[at] for row in rows)]
            cells = [[row[at] for at in shown] for row in rows]
            invocation.console.table([COLUMNS[at] for at in shown], cells, NUMERIC, DROPPED_FIRST)
        invocation.console.finish(to_json(known.jobs, waiting), known.problem)


def _cells(job: JobOverview, of: int) -> list[str]:
    run = job.newest
    when = datetime.datetime.fromtimestamp(job.t).strftime("%Y-%m-%d %H:%M")
    return [
        job.job,
        _shortened(run.name or "") if run else "",
        style.state(job.state) + (WARNED if run and run.warnings else ""),
        str(len(job.runs)),
        *_figures(run),
        job.workspace,
        job.content[:8],
        str(job.files),
        human_bytes(job.bytes),
        when,
        f"{len(job.nodes)}/{of}",
    ]


def _figures(run: RunOverview | None) -> list[str]:
    if run is None:
        return [""] * 6
    metrics = list(run.metrics.items())
    first = metrics[0] if metrics else None
    more = ", ".join(_metric(name, values) for name, values in metrics[1:])
    return [
        "" if run.seconds is None else human_time(run.seconds),
        "" if run.loss is None else f"{run.loss:.4g}",
        "" if first is None else f"{_shortened(first[0], 16)} {first[1].last:.4g}",
        "" if first is None or first[1].best is None else f"{first[1].best:.4g}",
        _shortened(more),
        _shortened(" ".join(word if word == HIDDEN else shlex.quote(word) for word in run.arguments)),
    ]


def _metric(name: str, values: MetricValues) -> str:
    best = "" if values.best is None else f" (best {values.best:.4g})"
    return f"{name} {values.last:.4g}{best}"


def _shortened(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
