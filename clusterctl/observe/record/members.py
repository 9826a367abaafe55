"""The nodes of the newest run of a job, as reported by the nodes: all of conf.py, unless the start was partial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

from clusterctl.cluster import NodeOutcome
from clusterctl.cluster.run_answers import LeftOutNode
from clusterctl.common.schema import Count
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Inventory, Node, among


class MemberList(TypedDict):
    """The part of a document about the nodes of a run."""

    members: list[Count]  # their ids, the lead first
    left_out: list[LeftOutNode]


@dataclass(frozen=True)
class Members:
    """The nodes of run `run`, with their ranks in it, the lead first; for a job that was never started, all nodes.

    `left_out`: the other nodes of conf.py as `{"node", "message"}`, with the reason given at the start. `name` is the
    one that the run was given with `start --name`.
    """

    run: str | None
    nodes: tuple[Node, ...]
    left_out: tuple[LeftOutNode, ...]
    name: str | None = None

    @cached_property
    def by_id(self) -> dict[int, Node]:
        return {node.id: node for node in self.nodes}

    @property
    def lead(self) -> int:
        return self.nodes[0].id

    def __contains__(self, node: Node) -> bool:
        return node.id in self.by_id

    def to_json(self) -> MemberList:
        """The form used in JSON documents."""
        return {"members": list(self.by_id), "left_out": list(self.left_out)}

    def errors(self, outcomes: Iterable[NodeOutcome[Any]]) -> list[ClusterctlError]:
        """Return the errors that matter: a node that is not in the run may be unreachable or lack the job."""
        return [
            outcome.error
            for outcome in outcomes
            if outcome.error and (outcome.node in self or not isinstance(outcome.error, NodeError))
        ]


def members_of(inventory: Inventory, answers: Sequence[Mapping[str, Any]]) -> Members:
    """Return the members of the newest run in any answer; if separated nodes reused a name, the latest such run."""
    started = [answer for answer in answers if answer.get("run") and answer.get("started")]
    if not started:
        return Members(None, inventory.nodes, ())
    newest = max(started, key=lambda answer: (int(answer["run"] or 0), answer["started"] or 0))
    ids = newest["members"] or []
    nodes = among(inventory, ids) if ids else ()
    if not nodes:
        return Members(newest["run"], inventory.nodes, (), newest.get("name"))
    reasons = {row["node"]: row["message"] for row in newest["left_out"] or ()}
    absent = [node.id for node in inventory.nodes if node.id not in ids]
    left_out = tuple(LeftOutNode(node=node, message=reasons.get(node, "not in conf.py at the time")) for node in absent)
    return Members(newest["run"], nodes, left_out, newest.get("name"))
