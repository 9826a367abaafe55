"""The state of a job: what its nodes say, made one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.agent.paths import job_key
from clusterctl.cluster import Cluster, Message, NodeOutcome, combined, failures, raise_failures
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory import Node

DISPATCHED, UNKNOWN = "dispatched", "unknown"
WORST_FIRST = (UNKNOWN, "lost", "failed", "stopped", "running", "starting", "succeeded", DISPATCHED)
LIVE = ("starting", "running")
SHOWN = ("pass", "step", "loss", "samples_per_s", "compute", "wait", "wire", "cpu", "memory", "values", "started")


@dataclass(frozen=True)
class JobStatus:
    """One job, seen from all nodes. `errors` are those of nodes that did not answer."""

    job: str
    run: str | None
    state: str
    processes: list[Message]
    nodes: list[Message]
    errors: list[ClusterctlError]
    lead: Message | None


def status(cluster: Cluster, ref: str | None) -> JobStatus:
    """The newest run of job `ref` (None: the newest job of all nodes). Raises when no node knows it."""
    outcomes = newest_everywhere(cluster, {"op": "status"}, ref)
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    run = max((answer["run"] for answer in answers.values() if answer["run"]), default=None, key=int)
    return JobStatus(
        next(iter(answers.values()))["job"],
        run,
        merge_states(outcomes),
        [row for outcome in outcomes for row in _rows(outcome)],
        [_node_view(outcome) for outcome in outcomes],
        [outcome.error for outcome in failures(outcomes) if outcome.error],
        answers.get(0),
    )


def newest_everywhere(cluster: Cluster, request: Message, ref: str | None) -> list[NodeOutcome[Message]]:
    """Every node's answer about the same job: when the newest differs, nodes with an older one are asked again."""
    outcomes = cluster.ask({**request, "ref": ref})
    answered = [outcome for outcome in outcomes if outcome.ok]
    if not answered:
        raise_failures(outcomes, str(request["op"]))
    jobs = {outcome.get()["job"] for outcome in answered}
    if len(jobs) == 1:
        return outcomes
    if ref is not None:
        raise UsageError(f"{ref} means {' and '.join(sorted(jobs))}", hint="give more of the id")
    newest = max(jobs, key=job_key)
    behind = [outcome.node for outcome in answered if outcome.get()["job"] != newest]
    again = {outcome.node.id: outcome for outcome in cluster.ask({**request, "ref": newest}, behind)}
    return [again.get(outcome.node.id, outcome) for outcome in outcomes]


def job_id(cluster: Cluster, ref: str | None) -> str:
    """The id of the job that `ref` names, the same for all nodes. Raises when no node knows it."""
    outcomes = newest_everywhere(cluster, {"op": "status"}, ref)
    return str(next(outcome.get()["job"] for outcome in outcomes if outcome.ok))


def merge_states(outcomes: Sequence[NodeOutcome[Message]]) -> str:
    """The lead's word decides while its node answers, else the worst of all."""
    lead = next((outcome for outcome in outcomes if outcome.node.id == 0 and outcome.ok), None)
    if lead is not None and lead.get()["state"] != DISPATCHED:
        return str(lead.get()["state"])
    return worst(outcome.get()["state"] if outcome.ok else UNKNOWN for outcome in outcomes)


def worst(states: Iterable[str]) -> str:
    return min(states, key=WORST_FIRST.index)


def _rows(outcome: NodeOutcome[Message]) -> list[Message]:
    node = outcome.node
    if not outcome.ok:
        ranks = [("pserver", rank) for rank in node.pserver_ranks] + [("trainer", rank) for rank in node.trainer_ranks]
        return [row(node, {"role": role, "rank": rank, "state": UNKNOWN}) for role, rank in ranks]
    return [row(node, process) for process in outcome.get()["processes"]]


def row(node: Node, process: Message) -> Message:
    """One process as `status --json` shows it."""
    return {
        "node": node.id,
        "host": node.where,
        "role": process["role"],
        "rank": process["rank"],
        "state": process["state"],
        "pid": process.get("pid"),
        "restarts": process.get("restarts", 0),
        "exit_code": process.get("exit_code"),
        **{name: process.get(name) for name in SHOWN},
    }


def _node_view(outcome: NodeOutcome[Message]) -> Message:
    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if outcome.ok:
        answer = outcome.get()
        return {**view, "dir": answer["dir"], "state": answer["state"], "last_event": answer.get("last_event")}
    return {**view, "state": UNKNOWN, "error": outcome.error.to_json() if outcome.error else None}


def jobs(cluster: Cluster) -> tuple[list[Message], list[ClusterctlError]]:
    """All jobs of all nodes, newest first, each with its merged runs; and the errors of nodes that did not answer."""
    outcomes = cluster.ask({"op": "jobs"})
    if not any(outcome.ok for outcome in outcomes):
        raise_failures(outcomes, "jobs")
    found: dict[str, dict[int, Message]] = {}
    for outcome in outcomes:
        for job in outcome.get()["jobs"] if outcome.ok else ():
            found.setdefault(job["job"], {})[outcome.node.id] = job
    errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
    names = sorted(found, key=job_key, reverse=True)
    return [_job_view(name, found[name], len(errors)) for name in names], errors


def _job_view(name: str, by_node: dict[int, Message], silent: int) -> Message:
    record = next(iter(by_node.values()))["record"]
    run_names = sorted({run["run"] for job in by_node.values() for run in job["runs"]}, key=int)
    runs = [{"run": run, "state": _run_state(run, by_node, silent)} for run in run_names]
    return {
        "job": name,
        "state": runs[-1]["state"] if runs else DISPATCHED,
        "runs": runs,
        "workspace": record["workspace"],
        "content": record["content"],
        "files": max(job["record"]["files"] for job in by_node.values()),
        "bytes": max(job["record"]["bytes"] for job in by_node.values()),
        "t": record["t"],
        "nodes": sorted(by_node),
    }


def _run_state(run: str, by_node: dict[int, Message], silent: int) -> str:
    views = {node: {r["run"]: r["state"] for r in job["runs"]}.get(run) for node, job in by_node.items()}
    lead = views.get(0)
    return lead or worst([state for state in views.values() if state] + [UNKNOWN] * silent)


def unheard(errors: Sequence[ClusterctlError], of: int) -> ClusterctlError | None:
    """What to raise when some nodes did not answer, after what is known has been shown."""
    return combined(errors, of, "asking") if errors else None
