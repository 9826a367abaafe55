"""The logs of a run, from all nodes, in time order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from clusterctl.cluster import AgentCall, Cluster, raise_failures
from clusterctl.inventory import Node
from clusterctl.observe.follow import LogLine


def read_logs(cluster: Cluster, job: str | None, **wanted: Any) -> Iterator[LogLine]:
    """Every line that is wanted; memory does not grow with the logs. Raises when a node does not answer.

    `wanted` are the agent's selections: role, rank, since (seconds since the epoch), tail (lines per process), grep.
    """
    calls: dict[int, AgentCall] = {}

    def begin(node: Node) -> tuple[Node, AgentCall, list[dict[str, Any]]]:
        call = calls[node.id] = cluster.call(node, {"op": "logs", "ref": job, **wanted})
        return node, call, call.receive()["streams"]

    try:
        begun = raise_failures(cluster.map(begin), "logs")
        yield from heapq.merge(*(_lines_of(*one) for one in begun), key=lambda line: line.t)
    finally:
        for call in calls.values():
            call.close()


def _lines_of(node: Node, call: AgentCall, streams: list[dict[str, Any]]) -> Iterator[LogLine]:
    while True:
        message = call.receive()
        if "done" in message:
            return
        for t, stream, text, _ in message["lines"]:
            yield LogLine(t, node, streams[stream]["role"], streams[stream]["rank"], text)
