"""Preflight of the nodes for the job that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl import check as preflight
from clusterctl.check import Report
from clusterctl.cluster import Cluster
from clusterctl.inventory import Node
from clusterctl.launch import plan

SHOWN = (
    *("address", "interface", "versions", "system", "cores", "memory", "disk", "open_files", "busy", "leftovers"),
    "gpus",
)


def check(cluster: Cluster) -> Report:
    """Check every node, and all pairs of them. Nodes that do not answer are findings."""
    return preflight.check(cluster, runtime=plan(cluster.settings, cluster.inventory).needs_runtime)


def to_json(cluster: Cluster, report: Report) -> dict[str, Any]:
    """The document of `check --json`."""
    pairs = report.pairs
    return {
        "nodes": [_node(node, report) for node in cluster.nodes],
        "pairs": {
            "possible": pairs.possible,
            "tried": pairs.tried,
            "ok": pairs.ok,
            "failed": [failure.to_json() for failure in pairs.failures],
        },
        "findings": [finding.to_json() for finding in report.findings],
    }


def _node(node: Node, report: Report) -> dict[str, Any]:
    error, facts, skew = report.errors.get(node.id), report.facts.get(node.id), report.skews.get(node.id)
    view: dict[str, Any] = {
        "node": node.id,
        "host": node.where,
        "ok": error is None and not any(node.id in finding.nodes for finding in report.stops),
        "seconds": round(report.seconds[node.id], 3),
    }
    if error is not None:
        view["error"] = error.to_json()
    if facts is not None:
        by_name: Mapping[str, object] = facts
        view.update({name: by_name[name] for name in SHOWN})
        view["half_dispatched"] = len(facts["half_dispatched"])
    if skew is not None:
        view.update(clock_ahead_s=round(skew.ahead_s, 3), clock_error_s=round(skew.error_s, 3))
    return view
