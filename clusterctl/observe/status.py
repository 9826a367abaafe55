"""The state of a job, merged from the answers of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.cluster import ANSWER_S, Cluster, NodeOutcome, choose_job, combined, failures, raise_failures
from clusterctl.cluster.answers import STATES, JobAnswer, RunEnd, RunWarning, StatusAnswer, own_word
from clusterctl.common.paths import job_key
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory import Inventory, Node
from clusterctl.observe.members import Members, members_of

DISPATCHED, UNKNOWN = "dispatched", "unknown"
WORST_FIRST = STATES
LIVE = ("starting", "running")
_NUMBERS = ("pass", "step", "loss", "samples_per_s", "compute", "wait", "wire", "cpu", "memory")
SHOWN = (*_NUMBERS, "values", "started", "staleness", "tables", "lost")


@dataclass(frozen=True)
class JobStatus:
    """One job as seen from all nodes; `processes` and `nodes` have the form of `status --json`.

    `errors`: of nodes that should have answered but did not.
    """

    job: str
    members: Members
    state: str
    processes: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    errors: list[ClusterctlError]
    lead: StatusAnswer | None

    @property
    def run(self) -> str | None:
        return self.members.run

    @property
    def warnings(self) -> list[RunWarning]:
        """Doubts about a run that succeeded."""
        ended: RunEnd = (self.lead or {}).get("ended") or {}
        return ended.get("warnings") or []


def status(cluster: Cluster, ref: str | None, *, answer_s: float = ANSWER_S) -> JobStatus:
    """Return the newest run of job `ref`; for None, of the job that is meant. Raises if no node has the job."""
    outcomes = _same_job_everywhere(cluster, ref, answer_s)
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    members = members_of(cluster.inventory, list(answers.values()))
    lead = answers.get(members.lead)
    return JobStatus(
        next(iter(answers.values()))["job"],
        members,
        merge_states(outcomes, members),
        [row for outcome in outcomes if outcome.node in members for row in _rows(outcome, members)],
        [_node_view(outcome, members) for outcome in outcomes],
        members.errors(outcomes),
        lead if lead and lead["run"] == members.run else None,
    )


def _same_job_everywhere(
    cluster: Cluster, ref: str | None, answer_s: float = ANSWER_S, *, to_resume: bool = False, run: str | None = None
) -> list[NodeOutcome[StatusAnswer]]:
    """Return every node's answer about the same job; nodes that have another one in mind are asked again."""
    request = {"op": "status", "run": run}
    outcomes: list[NodeOutcome[StatusAnswer]] = cluster.ask({**request, "ref": ref}, answer_s=answer_s)
    answered = [outcome for outcome in outcomes if outcome.ok]
    if not answered:
        raise_failures(outcomes, "status")
    jobs = {outcome.get()["job"] for outcome in answered}
    if ref is not None and len(jobs) > 1:
        raise UsageError(f"{ref} is ambiguous: {', '.join(sorted(jobs))}", hint="give more of the job id")
    meant = jobs.pop()
    if ref is None:
        meant = choose_job([outcome.get() for outcome in answered], to_resume=to_resume)
    behind = [outcome.node for outcome in answered if outcome.get()["job"] != meant]
    if not behind:
        return outcomes
    asked_again = cluster.ask({**request, "ref": meant}, behind, answer_s=answer_s)
    again = {outcome.node.id: outcome for outcome in asked_again}
    return [again.get(outcome.node.id, outcome) for outcome in outcomes]


def find(cluster: Cluster, ref: str | None, *, to_resume: bool = False, run: str | None = None) -> tuple[str, Members]:
    """Return the id of job `ref`, the same for all nodes, and the members of its `run` (None: the newest).

    Raises if no node has the job, or that run. For None it is the job that is meant; with `to_resume` the one that ran
    last, even if another is live.
    """
    outcomes = _same_job_everywhere(cluster, ref, to_resume=to_resume, run=run)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    job, members = answers[0]["job"], members_of(cluster.inventory, answers)
    if run is not None and members.run is None:
        raise UsageError(f"{job} has no run {int(run)}", hint="clusterctl jobs shows how many each job has")
    return job, members


def find_directories(cluster: Cluster, ref: str | None) -> dict[int, NodeOutcome[StatusAnswer]]:
    """Return, per node, the answer with the `dir` of job `ref`, chosen as by `find`, or why the node has none.

    Only a directory that its node found safe counts: on a shared disk, others may have put one of that name there.
    """
    return {outcome.node.id: outcome for outcome in _same_job_everywhere(cluster, ref)}


def merge_states(outcomes: Sequence[NodeOutcome[StatusAnswer]], members: Members) -> str:
    """Return the lead's state if its node answers, otherwise the worst state of all members."""
    ours = [outcome for outcome in outcomes if outcome.node in members]
    lead = next((outcome for outcome in ours if outcome.node.id == members.lead and outcome.ok), None)
    if lead is not None and lead.get()["run"] == members.run is not None:
        return lead.get()["state"]
    return worst(outcome.get()["state"] if outcome.ok else UNKNOWN for outcome in ours)


def worst(states: Iterable[str]) -> str:
    return min(states, key=WORST_FIRST.index)


def _rows(outcome: NodeOutcome[StatusAnswer], members: Members) -> list[dict[str, Any]]:
    node = members.by_id[outcome.node.id]
    if not outcome.ok:
        ranks = [("pserver", rank) for rank in node.pserver_ranks] + [("trainer", rank) for rank in node.trainer_ranks]
        return [row(node, {"role": role, "rank": rank, "state": UNKNOWN}) for role, rank in ranks]
    answer = outcome.get()
    return [row(node, process) for process in answer["processes"] if answer["run"] == members.run]


def row(node: Node, process: Mapping[str, Any]) -> dict[str, Any]:
    """Return one process as `status --json` shows it."""
    return {
        "node": node.id,
        "host": node.where,
        "role": process["role"],
        "rank": process["rank"],
        "state": process["state"],
        "pid": process.get("pid"),
        "restarts": process.get("restarts", 0),
        "exit_code": process.get("exit_code"),
        **{name: own_word(name, process.get(name)) for name in SHOWN},
    }


def _node_view(outcome: NodeOutcome[StatusAnswer], members: Members) -> dict[str, Any]:
    """Return one node as `status --json` shows it; `state` is None for a node that is not in the run."""
    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    is_member = outcome.node in members
    if outcome.ok:
        answer = outcome.get()
        state, event = (answer["state"], answer.get("last_event")) if is_member else (None, None)
        return {**view, "dir": answer["dir"], "state": state, "last_event": event}
    error = outcome.error.to_json() if outcome.error else None
    return {**view, "state": UNKNOWN if is_member else None, "error": error}


def jobs(cluster: Cluster) -> tuple[list[dict[str, Any]], list[ClusterctlError]]:
    """Return all jobs of all nodes, newest first, with their merged runs, and the errors of nodes that failed."""
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
    return [_job_view(name, by_job[name], silent, cluster.inventory) for name in names], errors


def _job_view(name: str, by_node: Mapping[int, JobAnswer], silent: set[int], inventory: Inventory) -> dict[str, Any]:
    record = next(iter(by_node.values()))["record"]
    run_names = sorted({str(run["run"]) for job in by_node.values() for run in job["runs"]}, key=int)
    runs = [
        {"run": run, "state": _run_state(run, by_node, silent, inventory), **_warnings(run, by_node)}
        for run in run_names
    ]
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


def _warnings(run: str, by_node: Mapping[int, JobAnswer]) -> dict[str, Any]:
    """Return the `warnings` of a run if its lead reports any."""
    found = [
        view["warnings"]
        for job in by_node.values()
        for view in job["runs"]
        if view["run"] == run and "warnings" in view
    ]
    return {"warnings": found[0]} if found else {}


def _run_state(run: str, by_node: Mapping[int, JobAnswer], silent: set[int], inventory: Inventory) -> str:
    views = {node: view for node, job in by_node.items() for view in job["runs"] if view["run"] == run}
    members = members_of(inventory, list(views.values()))
    states = {node: view["state"] for node, view in views.items() if node in members.by_id}
    unknown = silent.intersection(members.by_id)
    return states.get(members.lead) or worst([*states.values(), *[UNKNOWN for _ in unknown]])


def unheard(errors: Sequence[ClusterctlError], of: int) -> ClusterctlError | None:
    """Return the error to raise if some nodes did not answer, after the other answers have been shown."""
    return combined(errors, of, "the request") if errors else None
