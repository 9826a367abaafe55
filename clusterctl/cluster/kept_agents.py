"""Agents that have answered and stay for the next request, so that a command starts few of them on a node."""

from __future__ import annotations

import contextlib
import resource
import threading

from clusterctl.cluster.heartbeats import AgentInput, Heartbeats

FILES_EACH = 3  # the pipes of a carrier; a connection of SSH is one
OTHER_FILES = 256  # of this process, and of the carriers that are just being started


class KeptAgents:
    """Idle agents by node. Thread-safe.

    Those of all `nodes` stay, if this process may open so many files; its own limit is raised as far as it goes.
    Beyond that the newcomer ends, since the others are asked again before it.
    """

    def __init__(self, heartbeats: Heartbeats, nodes: int) -> None:
        self._beats = heartbeats
        self._idle: dict[int, AgentInput] = {}
        self._lock = threading.Lock()
        self._most = _room(nodes)

    def put(self, node: int, agent: AgentInput) -> None:
        with self._lock:
            is_kept = node not in self._idle and len(self._idle) < self._most
            if is_kept:
                self._idle[node] = agent
        if not is_kept:
            self._end(agent)

    def take(self, node: int) -> AgentInput | None:
        """Return the idle agent of the node, which may have ended in the meantime."""
        with self._lock:
            return self._idle.pop(node, None)

    def close(self) -> None:
        with self._lock:
            self._most = 0
            idle, self._idle = self._idle, {}
        for agent in idle.values():
            self._end(agent)

    def _end(self, agent: AgentInput) -> None:
        self._beats.remove(agent)
        agent.process.close()


def _room(nodes: int) -> int:
    """Return the number of agents that can stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OTHER_FILES + FILES_EACH * nodes
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return nodes if soft == resource.RLIM_INFINITY else max(1, (soft - OTHER_FILES) // FILES_EACH)
