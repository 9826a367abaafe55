"""The state of a job, merged from the answers of its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from clusterctl.cluster import ANSWER_S, Cluster, NodeOutcome, choose_job, combined, raise_failures
from clusterctl.cluster.answers import GpuReport, StatusAnswer, StatusFacts
from clusterctl.cluster.run_answers import STATES, DroppedCutAnswer
from clusterctl.common.events import RunWarning
from clusterctl.common.requests import StatusRequest
from clusterctl.common.schema import Count, NotRequired
from clusterctl.errors import ClusterctlError, ErrorDocument, UsageError
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members, members_of
from clusterctl.observe.record.model import ProcessRecord

DISPATCHED, LOST, UNKNOWN = "dispatched", "lost", "unknown"
WORST_FIRST = STATES
LIVE = ("starting", "running")
ANSWERED_S = 15.0


class StatusNode(TypedDict):
    """A node of a job. One that did not answer has an `error`, and no `dir` or `last_event`."""

    node: Count
    host: str
    ok: bool
    dir: NotRequired[str]
    state: str | None  # null: it is not in this run
    last_event: NotRequired[Any]
    error: NotRequired[ErrorDocument]
    gpus: NotRequired[GpuReport]  # while a run with GPUs lives; its `users` are processes that are not of this run


@dataclass(frozen=True)
class JobStatus:
    """One job as seen from all nodes; `nodes` have the form of `status --json`.

    `errors`: of nodes that should have answered but did not. `offset_s` is our clock minus the lead's, 0 if they agree
    as far as an answer can tell.
    """

    job: str
    members: Members
    state: str
    processes: list[ProcessRecord]
    nodes: list[StatusNode]
    errors: list[ClusterctlError]
    lead: StatusFacts | None
    offset_s: float = 0.0

    @property
    def run(self) -> str | None:
        return self.members.run

    @property
    def cut_dropped(self) -> DroppedCutAnswer | None:
        """The last checkpoint or model that a live run did not save at its time."""
        return (self.lead or {}).get("cut_dropped") if self.state in LIVE else None

    @property
    def warnings(self) -> list[RunWarning]:
        """The warnings of the run so far."""
        return (self.lead or {}).get("warnings") or []


def status(
    cluster: Cluster, ref: str | None, *, run: str | None = None, answer_s: float = ANSWER_S, gpus: bool = False
) -> JobStatus:
    """Return `run` (None: the newest) of job `ref`; for None, of the job that is meant. Raises if no node has it.

    With `gpus`, nodes whose trainers have GPUs report on them, which takes them a second or more.
    """
    outcomes = _same_job_everywhere(cluster, ref, answer_s, run=run, gpus=gpus)
    answers = {outcome.node.id: outcome.get() for outcome in outcomes if outcome.ok}
    members = members_of(cluster.inventory, list(answers.values()))
    if run is not None and members.run is None:
        raise no_such_run(next(iter(answers.values()))["job"], run)
    lead = answers.get(members.lead)
    return JobStatus(
        next(iter(answers.values()))["job"],
        members,
        merge_states(outcomes, members),
        _newest(process for outcome in outcomes if outcome.node in members for process in _processes(outcome, members)),
        [_node_view(outcome, members) for outcome in outcomes],
        members.errors(outcomes),
        lead if lead and lead["run"] == members.run else None,
        _offset_s(lead),
    )


def _offset_s(lead: StatusFacts | None) -> float:
    """Return our clock minus the lead's. Its answer has just arrived, after seconds at most."""
    now = (lead or {}).get("now")
    offset_s = time.time() - now if now is not None else 0.0
    return offset_s if abs(offset_s) > ANSWERED_S else 0.0


def _same_job_everywhere(
    cluster: Cluster,
    ref: str | None,
    answer_s: float = ANSWER_S,
    *,
    to_resume: bool = False,
    run: str | None = None,
    gpus: bool = False,
) -> list[NodeOutcome[StatusAnswer]]:
    """Return every node's answer about the same job; nodes that have another one in mind are asked again."""

    def request(job: str | None) -> StatusRequest:
        if gpus:
            return {"op": "status", "run": run, "gpus": True, "ref": job}
        return {"op": "status", "run": run, "ref": job}

    outcomes: list[NodeOutcome[StatusAnswer]] = cluster.ask(request(ref), answer_s=answer_s)
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
    asked_again = cluster.ask(request(meant), behind, answer_s=answer_s)
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
        raise no_such_run(job, run)
    return job, members


def no_such_run(job: str, run: str) -> UsageError:
    return UsageError(f"{job} has no run {int(run)}", hint="clusterctl jobs shows how many each job has")


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


def _newest(processes: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    """Return each process once: those that have moved are known to two nodes, or are expected on one that is away."""
    found: dict[tuple[str, int], ProcessRecord] = {}
    for process in processes:
        before = found.setdefault((process.role, process.rank), process)
        if before.state == UNKNOWN or (process.state != UNKNOWN and process.restarts > before.restarts):
            found[process.role, process.rank] = process
    return list(found.values())


def _processes(outcome: NodeOutcome[StatusAnswer], members: Members) -> list[ProcessRecord]:
    node = members.by_id[outcome.node.id]
    if not outcome.ok:
        ranks = [("pserver", rank) for rank in node.pserver_ranks] + [("trainer", rank) for rank in node.trainer_ranks]
        return [ProcessRecord(role, rank, UNKNOWN, node=node) for role, rank in ranks]
    answer = outcome.get()
    return [process_on(node, process) for process in answer["processes"] if answer["run"] == members.run]


def process_on(node: Node, known: Mapping[str, Any]) -> ProcessRecord:
    """Return the record of a process as its node describes it."""
    process = ProcessRecord(
        known["role"],
        known["rank"],
        known["state"],
        known.get("restarts") or 0,
        known.get("exit_code"),
        node=node,
        pid=known.get("pid"),
    )
    process.take_figures(known)
    return process


def _node_view(outcome: NodeOutcome[StatusAnswer], members: Members) -> StatusNode:
    """Return one node as `status --json` shows it."""
    node, is_member = outcome.node, outcome.node in members
    if outcome.error is not None:
        state, error = UNKNOWN if is_member else None, outcome.error.to_json()
        return {"node": node.id, "host": node.where, "ok": False, "state": state, "error": error}
    answer = outcome.get()
    view: StatusNode = {
        "node": node.id,
        "host": node.where,
        "ok": True,
        "dir": answer["dir"],
        "state": answer["state"] if is_member else None,
        "last_event": answer.get("last_event") if is_member else None,
    }
    gpus = answer.get("gpus")
    if is_member and gpus:
        view["gpus"] = gpus
    return view


def unheard(errors: Sequence[ClusterctlError], of: int) -> ClusterctlError | None:
    """Return the error to raise if some nodes did not answer, after the other answers have been shown."""
    return combined(errors, of, "the request") if errors else None
