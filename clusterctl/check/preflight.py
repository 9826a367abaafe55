"""Collect the facts of every node, then let the nodes try to reach each other, with one command per node."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from clusterctl.check import connectivity as pairs
from clusterctl.check import findings
from clusterctl.check.findings import STOPS, Finding, Skew
from clusterctl.check.gpus import gpus
from clusterctl.cluster import AgentCall, Cluster, NodeOutcome
from clusterctl.cluster.answers import GpuReport, read
from clusterctl.cluster.node_facts import NodeFacts
from clusterctl.common.requests import CheckRequest
from clusterctl.documents.nodes import Pairs
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node

FACTS_S = 120.0
REACH_S = 120.0
LEAD = 0


@dataclass(frozen=True)
class Report:
    """The results. `facts` and `skews` by node id, for nodes that responded; `errors` for those that did not.

    `carriers` are the names of what reaches each node.
    """

    facts: dict[int, NodeFacts]
    skews: dict[int, Skew]
    errors: dict[int, ClusterctlError]
    seconds: dict[int, float]
    pairs: Pairs
    findings: list[Finding]
    carriers: dict[int, str]

    @property
    def stops(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.blocks]


class _Preflight:
    def __init__(self, cluster: Cluster, runtime: bool) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._calls: dict[int, AgentCall] = {}
        self._facts: dict[int, NodeFacts] = {}
        self._errors: dict[int, ClusterctlError] = {}
        self._skews: dict[int, Skew] = {}
        self._carriers = {node.id: node.carrier for node in cluster.nodes}

    def run(self) -> Report:
        try:
            outcomes = self._cluster.map(self._inspect)
            self._facts = self._values(outcomes)
            responding = [node for node in self._cluster.nodes if node.id in self._facts]
            results = self._values(self._cluster.map(self._reach, responding))
        finally:
            self._end()
        reachability = self._pairs(results)
        seconds = {outcome.node.id: outcome.seconds for outcome in outcomes}
        found = self._findings(reachability)
        return Report(self._facts, self._skews, self._errors, seconds, reachability, found, self._carriers)

    def _values(self, outcomes: list[NodeOutcome[Any]]) -> dict[int, Any]:
        self._errors.update({o.node.id: o.error for o in outcomes if o.error is not None})
        return {o.node.id: o.get() for o in outcomes if o.ok}

    def _inspect(self, node: Node) -> NodeFacts:
        settings = self._cluster.settings
        request: CheckRequest = {
            "op": "check",
            "python": settings.python,
            "runtime": self._runtime,
            "address": node.address,
            "nic": settings.nic,
            "port": settings.port,
            "count": len(node.pserver_ranks),
            "lead": node.id == LEAD,
            "gpus": node.host.gpus,
        }
        call = self._calls[node.id] = self._cluster.call(node, request)
        answer: Any = dict(call.receive(FACTS_S)["facts"])
        if answer["gpus"] is not None:
            read(GpuReport, answer["gpus"], "check")
        facts: NodeFacts = answer
        return facts

    def _reach(self, node: Node) -> list[list[Any]]:
        call = self._calls[node.id]
        targets = pairs.targets(node.id, self._facts)
        requested = time.time()
        call.send({"targets": targets})
        clock = call.receive()["clock"]
        self._skews[node.id] = Skew.measure(requested, clock, time.time())
        return list(call.receive(REACH_S)["reach"])

    def _end(self) -> None:
        for call in self._calls.values():
            with contextlib.suppress(ClusterctlError):
                call.send({"over": True})
            call.close()

    def _pairs(self, results: dict[int, list[list[Any]]]) -> Pairs:
        listening = [node for node, info in self._facts.items() if info["listening"]]
        possible = sum(node != peer for node in self._facts for peer in listening)
        tried = {(source, row[0]) for source, rows in results.items() for row in rows}
        failed = pairs.failures_in(results)
        broken = {(pair.from_, pair.to) for pair in failed}
        return Pairs(possible, len(tried), len(tried - broken), tuple(failed))

    def _findings(self, reachability: Pairs) -> list[Finding]:
        settings, inventory = self._cluster.settings, self._cluster.inventory
        members = max(inventory.trainer_count, len(inventory.nodes))
        unreached = [Finding(self._carriers[n], STOPS, (n,), e.message, e.hint) for n, e in self._errors.items()]
        return findings.folded(
            [
                *unreached,
                *findings.problems(self._facts),
                *findings.addresses(self._facts),
                *pairs.failed(reachability.failed, settings.port),
                *findings.quick(
                    self._facts, self._skews, members=members, open_files=settings.open_files, seals=self._seals()
                ),
                *findings.memories(self._facts),
                *findings.shims(self._facts, settings.python),
                *findings.busy_ports(self._facts),
                *findings.remains(self._facts),
                *findings.in_the_clear(self._cluster.nodes),
                *gpus(self._facts, self._cluster.nodes),
            ]
        )

    def _seals(self) -> bool:
        return self._runtime and len(self._cluster.nodes) > 1 and self._cluster.settings.ps_security == "curve"


def check(cluster: Cluster, *, runtime: bool) -> Report:
    """Run the preflight on the cluster's nodes. `runtime`: True if the job needs numpy and pyzmq there.

    A node that lacks something or does not respond raises no error: the report contains it.
    """
    return _Preflight(cluster, runtime).run()
