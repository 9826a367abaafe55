"""Let nodes that a run is waiting for rejoin it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.api.operations.references import job_of
from clusterctl.cluster import Cluster, NodeOutcome, combined
from clusterctl.documents.jobs import RejoinDocument, RejoinedNode
from clusterctl.documents.nodes import FailedNode, failed, head
from clusterctl.errors import ClusterctlError, RefusedError
from clusterctl.observe.record.status import find


@dataclass(frozen=True)
class Rejoining:
    """The answers of the nodes: what each `did`. `problem` is the error to report."""

    job: str
    outcomes: Sequence[NodeOutcome[dict[str, Any]]]
    problem: ClusterctlError | None

    def to_json(self) -> RejoinDocument:
        """The document of `start --rejoin --json`."""
        return {"job": self.job, "nodes": [_node(outcome) for outcome in self.outcomes]}


def rejoin(cluster: Cluster, job: str | None) -> Rejoining:
    """Ask the nodes of `cluster` to rejoin the run of a job, by default of the one that is meant."""
    ref = job_of(cluster, job) or find(cluster, None)[0]
    nic = cluster.settings.nic
    outcomes: list[NodeOutcome[dict[str, Any]]] = cluster.ask(
        lambda node: {"op": "rejoin", "ref": ref, "address": node.address, "nic": nic}, cluster.nodes
    )
    return Rejoining(ref, outcomes, _problem(ref, outcomes))


def _problem(job: str, outcomes: Sequence[NodeOutcome[dict[str, Any]]]) -> ClusterctlError | None:
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return combined(errors, len(outcomes), "rejoin")
    if all(outcome.get()["did"] == "ended" for outcome in outcomes):
        return RefusedError(f"{job} is not running", hint=f"clusterctl start --resume --job_workspace {job}")
    return None


def _node(outcome: NodeOutcome[dict[str, Any]]) -> RejoinedNode | FailedNode:
    if outcome.error is not None:
        return failed(outcome, outcome.error)
    return {**head(outcome), "run": outcome.get()["run"], "did": outcome.get()["did"]}
