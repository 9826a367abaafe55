"""`clusterctl jobs`: the jobs on the nodes, each with its newest run."""

from __future__ import annotations

import contextlib
import datetime
import shlex
from collections.abc import Callable, Mapping
from itertools import starmap

from clusterctl.api.status import list_jobs
from clusterctl.cli import style
from clusterctl.cli.console import human_bytes, human_time
from clusterctl.cli.invocation import Invocation
from clusterctl.observe.record.model import JobOverview, MetricValues, RunOverview
from clusterctl.observe.record.secrets import HIDDEN

NUMERIC = ("runs", "took", "loss", "best", "files")
DROPPED_FIRST = (
    *("content", "files", "size", "workspace", "more metrics", "when", "nodes", "arguments", "runs", "best"),
    *("took", "metric"),
)
ALWAYS = ("job", "state", "runs", "workspace", "content", "files", "size", "when", "nodes")
WARNED = style.warning(" (warning)")
LONGEST = 40  # characters of a cell
Cell = Callable[["JobOverview", int], str]


def jobs(invocation: Invocation) -> None:
    cluster, state_of = invocation.cluster_of_all()
    waiting = invocation.waiting_jobs()
    for job in waiting:
        invocation.console.say(job.sentence)
    with cluster or contextlib.nullcontext():
        known = list_jobs(cluster, state_of, waiting)
        if cluster is not None and known.jobs and not invocation.console.json:
            columns = {name: [cell(job, len(cluster.nodes)) for job in known.jobs] for name, cell in COLUMNS.items()}
            shown = [name for name, cells in columns.items() if name in ALWAYS or any(cells)]
            rows = list(zip(*(columns[name] for name in shown), strict=True))
            invocation.console.table(shown, rows, NUMERIC, DROPPED_FIRST)
        elif not known.jobs and not waiting:
            first = "submit hands one to Slurm" if cluster is None else "dispatch sends a workspace"
            invocation.console.say(f"no jobs; clusterctl {first}")
        invocation.console.finish(known.document, known.problem)


def _of_run(cell: Callable[[RunOverview], str]) -> Cell:
    """Return the cell of a job that shows its newest run; it is empty if the job was never started."""
    return lambda job, of: cell(job.newest) if job.newest is not None else ""


def _state(job: JobOverview, of: int) -> str:
    return style.state(job.state) + (WARNED if job.newest and job.newest.warnings else "")


def _first_metric(run: RunOverview) -> tuple[str, MetricValues] | None:
    return next(iter(run.metrics.items()), None)


def _metric_name(run: RunOverview) -> str:
    first = _first_metric(run)
    return "" if first is None else f"{_shortened(first[0], 16)} {first[1].last:.4g}"


def _best(run: RunOverview) -> str:
    first = _first_metric(run)
    return "" if first is None or first[1].best is None else f"{first[1].best:.4g}"


def _metric(name: str, values: MetricValues) -> str:
    best = "" if values.best is None else f" (best {values.best:.4g})"
    return f"{name} {values.last:.4g}{best}"


def _shortened(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


#: The cells of a job, of so many nodes in all.
COLUMNS: Mapping[str, Cell] = {
    "job": lambda job, of: job.job,
    "name": _of_run(lambda run: _shortened(run.name or "")),
    "state": _state,
    "runs": lambda job, of: str(len(job.runs)),
    "took": _of_run(lambda run: "" if run.seconds is None else human_time(run.seconds)),
    "loss": _of_run(lambda run: "" if run.loss is None else f"{run.loss:.4g}"),
    "metric": _of_run(_metric_name),
    "best": _of_run(_best),
    "more metrics": _of_run(lambda run: _shortened(", ".join(starmap(_metric, list(run.metrics.items())[1:])))),
    "arguments": _of_run(
        lambda run: _shortened(" ".join(word if word == HIDDEN else shlex.quote(word) for word in run.arguments))
    ),
    "workspace": lambda job, of: job.workspace,
    "content": lambda job, of: job.content[:8],
    "files": lambda job, of: str(job.files),
    "size": lambda job, of: human_bytes(job.bytes),
    "when": lambda job, of: datetime.datetime.fromtimestamp(job.t).strftime("%Y-%m-%d %H:%M"),
    "nodes": lambda job, of: f"{len(job.nodes)}/{of}",
}
