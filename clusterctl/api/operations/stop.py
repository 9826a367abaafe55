"""Stop a job on its nodes, and prove that nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterctl.cluster import Cluster, NodeOutcome, combined
from clusterctl.cluster.answers import StopAnswer
from clusterctl.documents.jobs import StopDocument, StoppedNode
from clusterctl.documents.nodes import FailedNode, failed, head
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members, members_of
from clusterctl.observe.record.status import find

STOP_S = 300.0  # two grace periods and their margins, on a node that swaps
OVER = ("dispatched", "succeeded", "failed", "stopped")  # states in which nothing needs to be stopped


@dataclass(frozen=True)
class Stopped:
    """The answers of the nodes to a stop. `problem` is the error to report; None proves that nothing is left."""

    job: str
    outcomes: list[NodeOutcome[StopAnswer]]
    members: Members
    problem: ClusterctlError | None

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

    def to_json(self) -> StopDocument:
        """The document of `stop --json`."""
        return {
            "job": self.job,
            "survivors": self.survivors,
            "members": list(self.members.by_id),
            "left_out": list(self.members.left_out),
            "nodes": [_node(outcome) for outcome in self.outcomes],
        }


def job_to_stop(cluster: Cluster, ref: str | None) -> str:
    """Return the job `ref`, or the one that is meant if none is named."""
    return ref or find(cluster, None)[0]


def stop(cluster: Cluster, ref: str, nodes: Sequence[Node] | None = None) -> Stopped:
    """Stop job `ref` on `nodes` (None: all). A node that is not in the newest run need not answer."""
    outcomes: list[NodeOutcome[StopAnswer]] = cluster.ask({"op": "stop", "ref": ref}, nodes, answer_s=STOP_S)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    members = members_of(cluster.inventory, answers)
    return Stopped(answers[0]["job"] if answers else ref, outcomes, members, _problem(outcomes, members))


def processes(count: int) -> str:
    return f"{count} {'process' if count == 1 else 'processes'}"


def _problem(outcomes: list[NodeOutcome[StopAnswer]], members: Members) -> ClusterctlError | None:
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


def _node(outcome: NodeOutcome[StopAnswer]) -> StoppedNode | FailedNode:
    if outcome.error is not None:
        return failed(outcome, outcome.error)
    answer = outcome.get()
    return {
        **head(outcome),
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
