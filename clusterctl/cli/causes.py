"""Why a run ended, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

LAST_WORD_S = 10.0  # of nodes that may be what is wrong

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.inventory import Inventory
    from clusterctl.observe.why.evidence import Incident
    from clusterctl.observe.why.report import Why


def cause_lines(inventory: Inventory, cause: dict[str, Any] | None) -> list[str]:
    """The first cause of a run's end: who, where, what, and its last words."""
    if not cause:
        return []
    node = next((node for node in inventory.nodes if node.id == cause.get("node")), None)
    who = f"{cause['role']}{cause['rank']}@{node.label} ({node.where}) " if node and cause.get("role") else ""
    where = f"{node.label} ({node.where}): " if node and not who and cause.get("kind") != "node_lost" else ""
    lines = [f"first cause: {who}{where}{cause.get('message', '')}"]
    return lines + [f"  | {line}" for line in cause.get("tail") or ()]


def headline(found: Why, one: Incident) -> str:
    """One thing that went wrong, in a line: who, where, what, and what that means."""
    node = found.members.by_id.get(one.node if one.node is not None else -1)
    who = f"{one.process}@{node.label} ({node.where}) " if node and one.process else ""
    said = one.diagnosis.words
    if one.kind == "node_lost":
        return f"node{one.node} is lost: {one.message}{'; ' + said if said else ''}"
    place = f"{node.label} ({node.where}): " if node and not who else ""
    text = f"{who}{place}{one.message}" + (f": {said}" if said and not one.explained else "")
    if one.times > 1 and one.since is not None:
        text += f", {one.times} times in the same way within {one.t - one.since:.0f} s"
    return text


def incident_line(found: Why, one: Incident) -> str:
    """The same, shorter, for one of many."""
    error = one.diagnosis.error
    text = headline(found, one)
    return text if not error or error in text or one.kind == "failure" else f"{text} ({error})"


def first_cause_lines(cluster: Cluster, job: str, cause: dict[str, Any] | None) -> list[str]:
    """How a run that has failed is told: by all nodes' events, else by what the lead took for the cause."""
    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.why.report import why

    told = cause_lines(cluster.inventory, cause)
    if cause is None or cause.get("kind") == "stopped" or len(cluster.nodes) < len(cluster.inventory.nodes):
        return told
    try:
        found = why(cluster, job, answer_s=LAST_WORD_S)
    except ClusterctlError:
        return told
    first = found.explanation.cause
    if first is None:
        return told
    return [f"first cause: {headline(found, first)}", *(f"  | {line}" for _, line in first.lines)]
