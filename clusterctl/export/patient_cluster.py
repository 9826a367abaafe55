"""A cluster for a server that asks its nodes all the time: silent nodes do not delay the others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from clusterctl.cluster import Cluster, NodeOutcome
from clusterctl.common.requests import AgentRequest, StatusRequest
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.observe.follow import is_passing

ANSWER_S = 5.0  # Prometheus waits for ten seconds
RETRY_S = 15.0


class PatientCluster(Cluster):
    """The nodes of another cluster, which stays open. Thread-safe.

    A node that did not answer is asked in the background, every RETRY_S. Until it answers, its outcome is the error.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self.inventory, self.nodes = cluster.inventory, cluster.nodes
        self._cluster = cluster
        self._clock = clock
        self._silent: dict[int, tuple[ClusterctlError, float]] = {}  # by node, and when to ask it again

    def ask(
        self,
        request: AgentRequest | Callable[[Node], AgentRequest],
        nodes: Sequence[Node] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> list[NodeOutcome[Any]]:
        self._ask_again()
        chosen, silent = self.nodes if nodes is None else nodes, dict(self._silent)
        outcomes = self._cluster.ask(request, [node for node in chosen if node.id not in silent], answer_s=answer_s)
        self._note(outcomes)
        by_node = {outcome.node.id: outcome for outcome in outcomes}
        return [by_node.get(node.id) or NodeOutcome[Any](node, None, silent[node.id][0], 0.0) for node in chosen]

    def _note(self, outcomes: Sequence[NodeOutcome[Any]]) -> None:
        for outcome in outcomes:
            if outcome.error is not None and is_passing(outcome.error):
                self._silent[outcome.node.id] = outcome.error, self._clock() + RETRY_S
            else:
                self._silent.pop(outcome.node.id, None)

    def _ask_again(self) -> None:
        """Start to ask the silent nodes whose time has come."""
        now = self._clock()
        due = [node for node in self.nodes if self._silent.get(node.id, (None, math.inf))[1] <= now]
        for node in due:
            self._silent[node.id] = self._silent[node.id][0], math.inf  # until this attempt ends
        if due:
            request: StatusRequest = {"op": "status", "ref": None, "run": None}
            threading.Thread(target=lambda: self._note(self._cluster.ask(request, due)), daemon=True).start()
