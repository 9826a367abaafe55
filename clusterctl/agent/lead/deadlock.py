"""Detects deadlocks: every trainer waits although every process responds.

They then wait for each other, or for an answer that no process will send. As long as one trainer does anything else, or
one process is stalled, or its node is away, or a pserver writes or reads a save, the others only wait for that one.
Pure: messages and the time go in.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder
from clusterctl.agent.lead.messages import AwaitedOrder, PaceReport
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.common.errors import first_of
from clusterctl.common.events import EndCause, StandstillEvent

SURE_S = 3.0  # a suspended machine reports long waits when it wakes; by then, a process that moves has reported it
STACKS_S = 1.0  # to write them, before any process is ended
MOST_NAMED = 6


class DeadlockDetector:
    """Supervisors report the pace of a process when it changes, see `messages.PaceReport`."""

    def __init__(self) -> None:
        self._paces: dict[Key, PaceReport] = {}
        self._since: float | None = None
        self._reported_at: float | None = None
        self._words = ""
        self._watched: dict[Key, int] = {}  # trainers that others wait for, with the attempt that is watched

    def receive(self, key: Key, message: PaceReport) -> None:
        self._paces[key] = message

    def look(self, attempts: Mapping[Key, int], now: float, node_of: Mapping[Key, int]) -> list[Action]:
        """The actions at the start or the end of a deadlock, and the orders to watch trainers that others wait for.

        `attempts` has the processes that should be active.
        """
        return [*self._watch(attempts, node_of), *self._look(attempts, now)]

    def _watch(self, attempts: Mapping[Key, int], node_of: Mapping[Key, int]) -> list[SendOrder]:
        """Order the supervisors of trainers that newly keep others waiting for too long to watch these."""
        waits = [self._paces[key] for key, attempt in attempts.items() if self._pace(key, attempt) == "waits"]
        named = {name for message in waits for name in message.get("awaits", ())}
        orders = []
        for key, attempt in sorted(attempts.items()):
            if key[0] == "trainer" and name_of(key) in named and self._watched.get(key) != attempt:
                self._watched[key] = attempt
                order: AwaitedOrder = {"do": "awaited", "role": key[0], "rank": key[1], "attempt": attempt}
                orders.append(SendOrder(order, node_of[key]))
        return orders

    def _look(self, attempts: Mapping[Key, int], now: float) -> list[Action]:
        waiting = self._waiting(attempts)
        self._since = None if not waiting else now if self._since is None else self._since
        if self._since is None and self._reported_at is not None:
            self._reported_at = None
            return [RecordEvent({"event": "standstill", "over": True, "message": "the run is making progress again"})]
        if self._since is None or self._reported_at is not None or now - self._since < SURE_S:
            return []
        self._reported_at = now
        stalled_s = min(message["for_s"] for message in waiting.values()) + now - self._since
        self._words = _words(waiting, stalled_s)
        event: StandstillEvent = {
            "event": "standstill",
            "stalled_s": round(stalled_s, 1),
            "message": f"{self._words}; the stacks of all are in their logs",
        }
        return [RecordEvent(event), SendOrder({"do": "stacks", "message": self._words})]

    def _waiting(self, attempts: Mapping[Key, int]) -> dict[Key, PaceReport]:
        """The waits of all trainers; empty as long as they may be waiting for a process that is busy or stalled."""
        paces = {key: self._pace(key, attempt) for key, attempt in sorted(attempts.items())}
        if any(pace != ("waits" if key[0] == "trainer" else "moves") for key, pace in paces.items()):
            return {}
        return {key: self._paces[key] for key in paces if key[0] == "trainer"}

    def _pace(self, key: Key, attempt: int) -> str:
        message = self._paces.get(key)
        return message["pace"] if message and message["attempt"] == attempt else "moves"

    def cause(self, now: float) -> EndCause | None:
        """The reason to end the run, once the stacks are written; None while there is no deadlock."""
        if self._reported_at is None or now - self._reported_at < STACKS_S:
            return None
        return {"kind": "stalled", "message": self._words}


def _words(waiting: Mapping[Key, PaceReport], stalled_s: float) -> str:
    waits = [f"{name_of(key)} for {message['message']}" for key, message in waiting.items()]
    waited = f"all trainers have been waiting for {stalled_s:.0f} s, and every process responds"
    return f"the run is stalled: {waited} ({first_of(waits, MOST_NAMED, '; ')})"
