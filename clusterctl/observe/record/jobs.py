"""All jobs of all nodes, with their runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.cluster import Cluster, failures, raise_failures
from clusterctl.cluster.run_answers import JobAnswer, KeepBestAnswer, RunAnswer
from clusterctl.common.curves import mean
from clusterctl.common.paths import job_key
from clusterctl.common.schema import Finite, fits
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Inventory
from clusterctl.observe.record.members import members_of
from clusterctl.observe.record.model import JobOverview, MetricValues, RunOverview, figure
from clusterctl.observe.record.secrets import Redactor
from clusterctl.observe.record.status import DISPATCHED, LOST, UNKNOWN, worst

#: Of each metric of a trainer: the last value, the lowest and the highest.
Metrics = dict[str, tuple[float, Finite | None, Finite | None]]
HIGHER_IS_BETTER = re.compile(r"(acc|accuracy|auc|auroc|f1|score|precision|recall|bleu|map|ndcg)s?(?![a-z])")
LOWER_IS_BETTER = re.compile(r"loss|err(or)?s?(?![a-z])")
StateOf = Callable[[str | None], str]


def jobs(cluster: Cluster, state_of: StateOf | None = None) -> tuple[list[JobOverview], list[ClusterctlError]]:
    """Return all jobs of all nodes, newest first, with their merged runs, and the errors of nodes that failed.

    `state_of` returns the state of a run that has recorded no end, by its name, where a scheduler decides about runs.
    """
    outcomes = cluster.ask({"op": "jobs"})
    if not any(outcome.ok for outcome in outcomes):
        raise_failures(outcomes, "jobs")
    by_job: dict[str, dict[int, JobAnswer]] = {}
    for outcome in outcomes:
        for job in outcome.get()["jobs"] if outcome.ok else ():
            by_job.setdefault(job["job"], {})[outcome.node.id] = job
    silent = {outcome.node.id for outcome in failures(outcomes)}
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    names = sorted(by_job, key=job_key, reverse=True)
    found = [_job(name, by_job[name], silent, cluster.inventory) for name in names]
    return list(_with_states(found, state_of)) if state_of is not None else found, errors


def _with_states(jobs: Iterable[JobOverview], state_of: StateOf) -> Iterator[JobOverview]:
    """Yield the jobs, newest first. Of runs with one name, attempts of a scheduler's job, the newest alone may live."""
    older: set[str | None] = set()
    for job in jobs:
        newest = job.newest
        if newest is not None and newest.state == LOST and newest.name not in older:
            state = state_of(newest.name)
            yield replace(job, runs=(*job.runs[:-1], replace(newest, state=state)), state=state)
        else:
            yield job
        older |= {run.name for run in job.runs if run.name}


def higher_is_better(name: str) -> bool:
    """Guess from the name of a metric which of its values is the best, as for `val_acc`, `rmse` and `score_error`."""
    plain = name.lower()
    return bool(HIGHER_IS_BETTER.search(plain)) and not LOWER_IS_BETTER.search(plain)


def _job(name: str, by_node: Mapping[int, JobAnswer], silent: set[int], inventory: Inventory) -> JobOverview:
    record = next(iter(by_node.values()))["record"]
    views: dict[str, dict[int, RunAnswer]] = {}
    for node, job in by_node.items():
        for view in job["runs"]:
            views.setdefault(str(view["run"]), {})[node] = view
    runs = tuple(_run(run, views[run], silent, inventory) for run in sorted(views, key=int))
    return JobOverview(
        job=name,
        state=runs[-1].state if runs else DISPATCHED,
        runs=runs,
        workspace=record["workspace"],
        content=record["content"],
        files=max(job["record"]["files"] for job in by_node.values()),
        bytes=max(job["record"]["bytes"] for job in by_node.values()),
        t=record["t"],
        nodes=tuple(sorted(by_node)),
    )


def _run(run: str, views: Mapping[int, RunAnswer], silent: set[int], inventory: Inventory) -> RunOverview:
    members = members_of(inventory, list(views.values()))
    ours = {node: view for node, view in views.items() if node in members.by_id}
    states = {node: view["state"] for node, view in ours.items()}
    unknown = silent.intersection(members.by_id)
    lead = ours.get(members.lead) or next(iter(ours.values()), None) or next(iter(views.values()))
    trainers = [trainer for view in ours.values() for trainer in view.get("trainers") or ()]
    losses = [loss for trainer in trainers if (loss := figure("loss", trainer.get("loss"))) is not None]
    return RunOverview(
        run=run,
        state=states.get(members.lead) or worst([*states.values(), *[UNKNOWN for _ in unknown]]),
        name=members.name,
        arguments=Redactor(lead.get("env") or {}).arguments(lead.get("arguments") or ()),
        seconds=lead.get("seconds"),
        loss=mean(losses) if losses else None,
        metrics=_metrics(trainers, lead.get("keep_best")),
        warnings=next((found for view in views.values() if (found := view.get("warnings"))), []),
    )


def _metrics(trainers: Iterable[Mapping[str, Any]], keep_best: KeepBestAnswer | None) -> dict[str, MetricValues]:
    """Return the metrics in the order in which trainers logged them; malformed ones are dropped."""
    by_name: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for trainer in trainers:
        if fits(Metrics, trainer.get("metrics")):
            for name, (last, low, high) in trainer["metrics"].items():
                by_name.setdefault(name, []).append((last, low, high))
    return {name: _values(name, rows, keep_best) for name, rows in by_name.items()}


def _values(
    name: str, rows: Sequence[tuple[float, float | None, float | None]], keep_best: KeepBestAnswer | None
) -> MetricValues:
    if keep_best is not None and keep_best["name"] == name:
        highest = keep_best["direction"] == "max"
    else:
        highest = higher_is_better(name)
    best = [high if highest else low for _, low, high in rows]
    finite = [value for value in best if value is not None]
    return MetricValues(mean([last for last, _, _ in rows]), mean(finite) if len(finite) == len(best) else None)
