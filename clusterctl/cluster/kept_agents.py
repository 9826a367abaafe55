"""Agents that have answered and stay for the next request, so that a command starts few of them on a node."""

from __future__ import annotations

import resource
import threading

from clusterctl.cluster.beats import AgentInput, Beats

MOST = 256  # of all nodes; a connection is open for each


class KeptAgents:
    """Idle agents by node. Thread-safe. Beyond the limit the one that has been idle for longest ends."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats
        self._idle: list[tuple[int, AgentInput]] = []
        self._lock = threading.Lock()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 4))

    def put(self, node: int, agent: AgentInput) -> None:
        with self._lock:
            self._idle.append((node, agent))
            ends = self._idle.pop(0)[1] if len(self._idle) > self._most else None
        if ends is not None:
            self._end(ends)

    def take(self, node: int) -> AgentInput | None:
        """Return an idle agent of the node, which may have ended in the meantime."""
        with self._lock:
            found = next((one for one in self._idle if one[0] == node), None)
            if found is not None:
                self._idle.remove(found)
            return None if found is None else found[1]

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, agent in idle:
            self._end(agent)

    def _end(self, agent: AgentInput) -> None:
        self._beats.remove(agent)
        agent.process.close()
