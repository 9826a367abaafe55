"""Why a run ended, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterctl.cli.console import clean

LAST_WORD_S = 10.0  # to answer, for nodes that may be the cause

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.cluster.answers import Cause, RunWarning
    from clusterctl.inventory import Inventory
    from clusterctl.observe.why.evidence import Incident
    from clusterctl.observe.why.report import Why


def cause_lines(inventory: Inventory, cause: Cause | None) -> list[str]:
    """The first cause of a run's end: the process, its node, the event, and its last lines."""
    if not cause:
        return []
    node = next((node for node in inventory.nodes if node.id == cause.get("node")), None)
    process = f"{cause['role']}{cause['rank']}@{node.label} ({node.where}) " if node and cause.get("role") else ""
    where = f"{node.label} ({node.where}): " if node and not process and cause.get("kind") != "node_lost" else ""
    lines = [f"first cause: {process}{where}{cause.get('message', '')}"]
    return lines + [f"  | {line}" for line in cause.get("tail") or ()]


def headline(report: Why, one: Incident) -> str:
    """One incident in a line: the process, its node, the event, and the reason."""
    node = report.members.by_id.get(one.node if one.node is not None else -1)
    process = f"{one.process}@{node.label} ({node.where}) " if node and one.process else ""
    reason = one.diagnosis.words
    if one.kind == "node_lost":
        return f"node{one.node} is lost: {one.message}{'; ' + reason if reason else ''}"
    where = f"{node.label} ({node.where}): " if node and not process else ""
    text = f"{process}{where}{one.message}" + (f": {reason}" if reason and not one.explained else "")
    if one.times > 1 and one.since is not None:
        text += f", {one.times} times the same way within {one.t - one.since:.0f} s"
    return text


def incident_line(report: Why, one: Incident) -> str:
    """The headline of one of many incidents, with its error if the headline does not show it."""
    error = one.diagnosis.error
    text = headline(report, one)
    return text if not error or error in text or one.kind == "failure" else f"{text} ({error})"


def warning_lines(warnings: Sequence[RunWarning] | None) -> list[str]:
    """Return the lines for doubts about a run that succeeded."""
    return [f"warning: {clean(warning['message'])}" for warning in warnings or ()]


def first_cause_lines(cluster: Cluster, job: str, cause: Cause | None) -> list[str]:
    """The first cause of a run that failed: from the events of all nodes, or else the cause as the lead saw it."""
    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.why.report import why

    by_lead = cause_lines(cluster.inventory, cause)
    if cause is None or cause.get("kind") == "stopped" or len(cluster.nodes) < len(cluster.inventory.nodes):
        return by_lead
    try:
        report = why(cluster, job, answer_s=LAST_WORD_S)
    except ClusterctlError:
        return by_lead
    first = report.explanation.cause
    if first is None:
        return by_lead
    return [f"first cause: {headline(report, first)}", *(f"  | {line}" for _, line in first.lines)]
