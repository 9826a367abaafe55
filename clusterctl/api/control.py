"""What a program may ask of a run: stop, and prove that nothing of it is left; save a checkpoint now; rejoin it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.api.opening import CallResult
from clusterctl.cluster import Cluster, NodeOutcome, combined, raise_failures
from clusterctl.cluster.answers import StopAnswer
from clusterctl.common.answers import SaveAnswer
from clusterctl.common.requests import SaveRequest
from clusterctl.documents.jobs import RejoinDocument, RejoinedNode, StopDocument, StoppedNode
from clusterctl.documents.nodes import NodeHead, by_node
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members, members_of
from clusterctl.observe.record.references import job_of
from clusterctl.observe.record.status import find

STOP_S = 300.0  # two grace periods and their margins, on a node that swaps
MARGIN_S = 60.0  # for the answer of a node that swaps
OVER = ("dispatched", "succeeded", "failed", "stopped")  # states in which nothing needs to be stopped


@dataclass(frozen=True)
class Stopped(CallResult):
    """A job that was stopped. That there is no problem proves that nothing of it is left on the nodes.

    `outcomes` are the answers of the nodes, of which `members` are those in the run.
    """

    job: str
    outcomes: Sequence[NodeOutcome[StopAnswer]] = field(repr=False, compare=False)
    members: Members = field(repr=False, compare=False)

    @property
    def answers(self) -> list[StopAnswer]:
        return [outcome.get() for outcome in self.outcomes if outcome.ok]

    @property
    def survivors(self) -> int:
        """The number of processes that are left."""
        return sum(answer["survivors"] for answer in self.answers)

    @property
    def was_over(self) -> bool:
        """True if nothing had to be stopped."""
        return bool(self.answers) and all(map(_was_over, self.answers))

    @property
    def taken(self) -> list[str]:
        """A message for each of the job's former ports that another process has."""
        return [message for outcome in self.outcomes if outcome.ok for message in _taken(outcome)]


def job_meant(cluster: Cluster, ref: str | None) -> str:
    """Return the job `ref`, or the one that is meant if none is named."""
    return ref or find(cluster, None)[0]


def stop(cluster: Cluster, ref: str, nodes: Sequence[Node] | None = None) -> Stopped:
    """Stop job `ref` on `nodes` (None: all). A node that is not in the newest run need not answer."""
    outcomes: list[NodeOutcome[StopAnswer]] = cluster.ask({"op": "stop", "ref": ref}, nodes, answer_s=STOP_S)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    members = members_of(cluster.inventory, answers)
    job = answers[0]["job"] if answers else ref
    document: StopDocument = {
        "job": job,
        "survivors": sum(answer["survivors"] for answer in answers),
        "members": list(members.by_id),
        "left_out": list(members.left_out),
        "nodes": by_node(outcomes, _stopped),
    }
    return Stopped(job, outcomes, members, document=document, problem=_left(outcomes, members))


def processes(count: int) -> str:
    return f"{count} {'process' if count == 1 else 'processes'}"


def _left(outcomes: list[NodeOutcome[StopAnswer]], members: Members) -> ClusterctlError | None:
    """Return the error to report: nodes that did not answer, processes that are left, ports that are taken."""
    answered = any(outcome.ok for outcome in outcomes)
    errors: list[ClusterctlError] = [
        error
        for error in members.errors(outcomes)  # a job that never ran, or was removed, need not be on all nodes
        if members.run is not None or not answered or error.details.get("reason") != "no_job"
    ]
    for outcome in outcomes:
        errors += _remains(outcome) if outcome.ok else []
    return combined(errors, len(outcomes), "stop") if errors else None


def _remains(outcome: NodeOutcome[StopAnswer]) -> Iterator[ClusterctlError]:
    answer, label = outcome.get(), outcome.node.label
    if answer["survivors"]:
        left = ", ".join(f"pid {row['pid']} ({row['command']})" for row in answer["left"])
        hint = "KILL had no effect (stuck in the kernel?); run clusterctl stop again to retry"
        message = f"{processes(answer['survivors'])} left: {left}"
        yield NodeError(message, node=label, hint=hint, details={"reason": "survivors"})
    for message in () if _was_over(answer) else _taken(outcome):
        hint = "kill it if it belongs to the job (it may have cleared its environment); start can use another port"
        yield NodeError(message, node=label, hint=hint, details={"reason": "port_busy"})


def _was_over(answer: StopAnswer) -> bool:
    """True if nothing had to be stopped; the present users of the job's former ports then do not matter."""
    return answer["was"] in OVER and not answer["leftovers"]


def _taken(outcome: NodeOutcome[StopAnswer]) -> Iterator[str]:
    """Describe the ports that are taken, and the process on each."""
    for holder in outcome.get()["holders"]:
        owner = f"pid {holder['pid']} ({holder['name']})" if holder["pid"] else f"another account (uid {holder['uid']})"
        yield f"port {holder['port']} is in use by {owner}, without the job's environment"


def _stopped(node: NodeHead, answer: StopAnswer) -> StoppedNode:
    return {
        **node,
        "dir": answer["dir"],
        "run": answer["run"],
        "was": answer["was"],
        "killed": answer["killed"],
        "leftovers": answer["leftovers"],
        "survivors": answer["survivors"],
        "left": answer["left"],
        "ports_busy": answer["ports_busy"],
        "holders": answer["holders"],
    }


@dataclass(frozen=True)
class Checkpoint(CallResult):
    """A checkpoint that is complete: its `tag`, and the `step` after which it was made."""

    tag: str
    step: int


def save(cluster: Cluster, ref: str | None, *, timeout_s: float) -> Checkpoint:
    """Ask the lead for a checkpoint, and return it once it is complete.

    Raises if that takes longer than `timeout_s`, and RefusedError if the job is not running.
    """
    job, members = find(cluster, ref)
    if members.run is None:
        raise UsageError(f"{job} was never started", hint=f"clusterctl start --job_workspace {job}")
    request: SaveRequest = {"op": "save", "ref": job, "limit_s": timeout_s}
    outcomes: list[NodeOutcome[SaveAnswer]] = cluster.ask(request, members.nodes[:1], answer_s=timeout_s + MARGIN_S)
    (answer,) = raise_failures(outcomes, "save")
    saved: SaveAnswer = {"job": answer["job"], "run": answer["run"], "tag": answer["tag"], "step": answer["step"]}
    return Checkpoint(answer["tag"], answer["step"], document=saved)


@dataclass(frozen=True)
class Rejoining(CallResult):
    """Nodes that were asked to rejoin the run of a job: `outcomes` say what each did."""

    job: str
    outcomes: Sequence[NodeOutcome[dict[str, Any]]] = field(repr=False, compare=False)


def rejoin(cluster: Cluster, job: str | None) -> Rejoining:
    """Ask the nodes of `cluster` to rejoin the run of a job, by default of the one that is meant."""
    ref = job_meant(cluster, job_of(cluster, job))
    nic = cluster.settings.nic
    outcomes: list[NodeOutcome[dict[str, Any]]] = cluster.ask(
        lambda node: {"op": "rejoin", "ref": ref, "address": node.address, "nic": nic}, cluster.nodes
    )
    document: RejoinDocument = {"job": ref, "nodes": by_node(outcomes, _rejoined)}
    return Rejoining(ref, outcomes, document=document, problem=_not_rejoined(ref, outcomes))


def _not_rejoined(job: str, outcomes: Sequence[NodeOutcome[dict[str, Any]]]) -> ClusterctlError | None:
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return combined(errors, len(outcomes), "rejoin")
    if all(outcome.get()["did"] == "ended" for outcome in outcomes):
        return RefusedError(f"{job} is not running", hint=f"clusterctl start --resume --job_workspace {job}")
    return None


def _rejoined(node: NodeHead, answer: dict[str, Any]) -> RejoinedNode:
    return {**node, "run": answer["run"], "did": answer["did"]}
