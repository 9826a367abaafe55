"""Why a run ended, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.cli import style
from clusterctl.cluster import Cluster
from clusterctl.common.events import RunWarning
from clusterctl.errors import ClusterctlError
from clusterctl.escape import clean
from clusterctl.inventory import Inventory
from clusterctl.observe.record.marks import warning_text
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.report import LAST_WORD_S, WhyReport, why
from clusterctl.observe.why.report import headline as plain

FIRST_CAUSE = style.bad("first cause:") + " "


def cause_lines(inventory: Inventory, cause: Mapping[str, Any] | None) -> list[str]:
    """The first cause of a run's end: the process, its node, the event, and its last lines."""
    if not cause:
        return []
    node = next((node for node in inventory.nodes if node.id == cause.get("node")), None)
    process = ""
    if node and (role := cause.get("role")):
        process = style.process(role, f"{role}{cause['rank']}@{node.label}") + f" ({node.where}) "
    where = f"{node.label} ({node.where}): " if node and not process and cause.get("kind") != "node_lost" else ""
    lines = [FIRST_CAUSE + process + f"{where}{cause.get('message', '')}"]
    return lines + [f"  | {line}" for line in cause.get("tail") or ()]


def headline(report: WhyReport, one: Incident) -> str:
    """One incident in a line, with the name of its process in colour."""
    text, name = plain(report, one), f"{one.process}@node{one.node}"
    return style.process(one.role, name) + text[len(name) :] if text.startswith(name) else text


def incident_line(report: WhyReport, one: Incident) -> str:
    """The headline of one of many incidents, with its error if the headline does not show it."""
    error = one.diagnosis.error
    text = headline(report, one)
    return text if not error or error in text or one.kind == "failure" else text + f" ({error})"


def warning_lines(warnings: Sequence[RunWarning] | None) -> list[str]:
    """Return the lines for the warnings of a run."""
    return [style.warning(f"warning: {clean(warning_text(warning))}") for warning in warnings or ()]


def corrected_hint(job: str, role: str | None) -> str | None:
    """Return how a corrected program takes the checkpoint of a job, if it was a trainer that failed."""
    return f"with a corrected program: clusterctl start WORKSPACE --resume-from {job}" if role == "trainer" else None


def first_cause_lines(cluster: Cluster, job: str, run: str | None, cause: Mapping[str, Any] | None) -> list[str]:
    """The first cause of a run that failed: from the events of all nodes, or else the cause as the lead saw it."""
    by_lead = cause_lines(cluster.inventory, cause)
    if cause is None or cause.get("kind") == "stopped" or len(cluster.nodes) < len(cluster.inventory.nodes):
        return by_lead

    try:
        report = why(cluster, job, run=run, answer_s=LAST_WORD_S)
    except ClusterctlError:
        return by_lead
    first = report.explanation.cause
    if first is None:
        return by_lead
    return [FIRST_CAUSE + headline(report, first), *(f"  | {line}" for _, line in first.lines)]
