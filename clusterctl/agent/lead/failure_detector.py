"""Tracks which nodes are here, silent, lost or awaited. Pure: heartbeats and the time go in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SUSPECT_S = 3.0


def suspect_s(heartbeat_s: float) -> float:
    """Seconds of silence after which a node is suspect."""
    return max(SUSPECT_S, 3 * heartbeat_s)


class FailureDetector:
    """The nodes `here` have joined; `idle` nodes have no process; `lost` nodes are given up; `awaited` may return."""

    def __init__(self, nodes: Iterable[int], now: float, suspect_s: float, grace_s: float) -> None:
        self.here: set[int] = set()
        self.idle: set[int] = set()
        self.lost: set[int] = set()
        self.awaited: set[int] = set()
        self._suspect: set[int] = set()
        self._heard = dict.fromkeys(nodes, now)
        self._suspect_s = suspect_s
        self._grace_s = grace_s

    @property
    def nodes(self) -> set[int]:
        return set(self._heard)

    @property
    def absent(self) -> set[int]:
        """The nodes that cannot be reached now."""
        return self.lost | self.awaited

    def receive(self, node: int, now: float) -> bool:
        """Note a sign of life. Return True if the node was suspect or awaited, and is not lost."""
        self._heard[node] = now
        missed = node in self._suspect or node in self.awaited
        self._suspect.discard(node)
        self.awaited.discard(node)
        return missed and node not in self.lost

    def look(self, now: float, *, idle_too: bool = False) -> Iterator[tuple[int, float, bool]]:
        """Yield (node, seconds of silence, True if it is lost) for nodes whose silence has reached a limit.

        Idle nodes are missed only with `idle_too`: processes may start on them again.
        """
        for node, heard in self._heard.items():
            silent_s = now - heard
            if node in self.absent or (node in self.idle and not idle_too):
                continue
            if silent_s > self._grace_s:
                yield node, silent_s, True
            elif silent_s > self._suspect_s and node not in self._suspect and node in self.here:
                self._suspect.add(node)
                yield node, silent_s, False

    def fenced_at(self, node: int) -> float:
        """The time from which on no process of the run is left on a node that is lost."""
        return self._heard[node] + self._grace_s

    def silent_s(self, node: int, now: float) -> float:
        """The seconds since the last sign of life."""
        return now - self._heard[node]

    def take_back(self, node: int, now: float) -> None:
        """Count a lost node among those that are here again, without processes."""
        self.lost.discard(node)
        self.here.add(node)
        self.idle.add(node)
        self._heard[node] = now

    def wait_for(self, node: int) -> None:
        self.awaited.add(node)
        self.idle.discard(node)

    def give_up_waiting(self) -> None:
        """Give up the awaited nodes, and those that never joined: nothing was started there."""
        self.lost |= self.awaited | (self.nodes - self.here)
        self.awaited.clear()

    def all_idle(self) -> bool:
        return self.idle | self.lost >= self.nodes
