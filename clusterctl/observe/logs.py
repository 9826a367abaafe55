"""The logs of a run, from all nodes, in time order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from clusterctl.cluster import NONSENSE, AgentCall, Cluster, answers, combined, failures, senseless
from clusterctl.cluster.answers import LogStream
from clusterctl.common.requests import LogSelection, LogsRequest
from clusterctl.common.schema import typed
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.observe.follow import OutputLine, lines_of


def read_logs(
    cluster: Cluster, nodes: Sequence[Node], job: str, run: str | None, wanted: LogSelection
) -> Iterator[OutputLine]:
    """Yield every line of a run that is `wanted`, in time order; raise the errors of nodes that failed at the end.

    Memory does not grow with the logs.
    """
    calls: dict[int, AgentCall] = {}
    request = typed(LogsRequest, {"op": "logs", "ref": job, "run": run, **wanted})

    def begin(node: Node) -> tuple[Node, AgentCall, list[LogStream]]:
        call = calls[node.id] = cluster.call(node, request)
        return node, call, answers.news(call.receive())["streams"]

    try:
        outcomes = cluster.map(begin, nodes)
        errors = [outcome.error for outcome in failures(outcomes) if outcome.error]
        streams = (_lines_of(*outcome.get(), errors) for outcome in outcomes if outcome.ok)
        yield from heapq.merge(*streams, key=lambda line: line.t)
        if errors:
            raise combined(errors, len(outcomes), "logs")
    finally:
        for call in calls.values():
            call.close()


def _lines_of(
    node: Node, call: AgentCall, streams: list[LogStream], errors: list[ClusterctlError]
) -> Iterator[OutputLine]:
    """Yield one node's lines; a failure of the node goes to `errors` and does not end the other nodes' lines."""
    try:
        while "lines" in (message := answers.news(call.receive())) or "alive" in message:
            yield from lines_of(node, streams, message.get("lines", []))
    except ClusterctlError as exc:
        errors.append(exc)
    except NONSENSE as exc:
        errors.append(senseless(node, exc))
