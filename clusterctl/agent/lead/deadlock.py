"""Whether a run stands still though nobody in it is silent: every trainer waits, and every pserver answers.

Then they wait for each other, or for an answer that nobody will give. As long as one trainer does anything else, or
one process is stalled, or its node is away, the others merely wait for that one. Pure: words and the time go in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.agent.lead.actions import Action, RecordEvent, SendOrder
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.lead.restart_policy import Key

SURE_S = 3.0  # a machine that was paused has long waits to tell of when it wakes: who moves says so by then
STACKS_S = 1.0  # to write them, before anything is ended
MOST_NAMED = 6
Message = dict[str, Any]


class DeadlockDetector:
    """Supervisors tell of a process's pace when it changes: it `moves`, it `waits` for too long, or it is `stalled`."""

    def __init__(self) -> None:
        self._paces: dict[Key, Message] = {}
        self._since: float | None = None
        self._told_at: float | None = None
        self._words = ""

    def receive(self, key: Key, message: Message) -> None:
        self._paces[key] = message

    def look(self, attempts: Mapping[Key, int], now: float) -> list[Action]:
        """What its beginning, or its end, leads to. `attempts` are those of the processes that are to do something."""
        waiting = self._waiting(attempts)
        self._since = None if not waiting else now if self._since is None else self._since
        if self._since is None and self._told_at is not None:
            self._told_at = None
            return [RecordEvent({"event": "standstill", "over": True, "message": "the run is making progress again"})]
        if self._since is None or self._told_at is not None or now - self._since < SURE_S:
            return []
        self._told_at = now
        stalled_s = min(float(message["for_s"]) for message in waiting.values()) + now - self._since
        self._words = _words(waiting, stalled_s)
        note = {"stalled_s": round(stalled_s, 1), "message": f"{self._words}; the stacks of all are in their logs"}
        return [RecordEvent({"event": "standstill", **note}), SendOrder({"do": "stacks", "message": self._words})]

    def _waiting(self, attempts: Mapping[Key, int]) -> dict[Key, Message]:
        """What all trainers wait for; nothing as long as it may be for one of the processes."""
        paces = {key: self._pace(key, attempt) for key, attempt in sorted(attempts.items())}
        if any(pace != ("waits" if key[0] == "trainer" else "moves") for key, pace in paces.items()):
            return {}
        return {key: self._paces[key] for key in paces if key[0] == "trainer"}

    def _pace(self, key: Key, attempt: int) -> str:
        message = self._paces.get(key)
        return str(message["pace"]) if message and message["attempt"] == attempt else "moves"

    def cause(self, now: float) -> Message | None:
        """Why the run is to fail, where that is what is wanted: when the stacks are written."""
        if self._told_at is None or now - self._told_at < STACKS_S:
            return None
        return {"kind": "stalled", "message": self._words}


def _words(waiting: Mapping[Key, Message], stalled_s: float) -> str:
    said = [f"{name_of(key)} for {message['message']}" for key, message in waiting.items()]
    more = f", and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    who = "; ".join(said[:MOST_NAMED]) + more
    waited = f"all trainers have been waiting for {stalled_s:.0f} s, and every process responds"
    return f"the run is stalled: {waited} ({who})"
