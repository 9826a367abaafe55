"""Preflight of the nodes for the job that the settings describe."""

from __future__ import annotations

from clusterctl import check as preflight
from clusterctl.check import Report
from clusterctl.cluster import Cluster
from clusterctl.cluster.node_facts import ShownFacts
from clusterctl.documents.nodes import CheckDocument, CheckedNode
from clusterctl.inventory import Node
from clusterctl.launch import plan


def check(cluster: Cluster) -> Report:
    """Check every node, and all pairs of them. Nodes that do not answer are findings."""
    return preflight.check(cluster, runtime=plan(cluster.settings, cluster.inventory).needs_runtime)


def document(cluster: Cluster, report: Report) -> CheckDocument:
    """Return the document of `check --json`."""
    nodes = tuple(_node(node, report) for node in cluster.nodes)
    return CheckDocument(nodes, report.pairs, tuple(finding.to_json() for finding in report.findings))


def _node(node: Node, report: Report) -> CheckedNode:
    error, facts, skew = report.errors.get(node.id), report.facts.get(node.id), report.skews.get(node.id)
    view: CheckedNode = {
        "node": node.id,
        "host": node.where,
        "ok": error is None and not any(node.id in finding.nodes for finding in report.stops),
        "seconds": round(report.seconds[node.id], 3),
    }
    if error is not None:
        view["error"] = error.to_json()
    if facts is not None:
        shown: ShownFacts = {
            "address": facts["address"],
            "interface": facts["interface"],
            "versions": facts["versions"],
            "system": facts["system"],
            "cores": facts["cores"],
            "memory": facts["memory"],
            "disk": facts["disk"],
            "open_files": facts["open_files"],
            "busy": facts["busy"],
            "leftovers": facts["leftovers"],
            "gpus": facts["gpus"],
        }
        view = {**view, **shown, "half_dispatched": len(facts["half_dispatched"])}
    if skew is not None:
        view["clock_ahead_s"], view["clock_error_s"] = round(skew.ahead_s, 3), round(skew.error_s, 3)
    return view
