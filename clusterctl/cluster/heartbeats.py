"""Heartbeats: an agent learns that the control machine is there, since a connection may be lost without a sign."""

from __future__ import annotations

import contextlib
import threading

from clusterctl.transport import RemoteProcess

HEARTBEAT = b"\n"  # a single byte is never sent by halves
STALL_S = 120.0  # time limit for an agent that stops reading its input: longer than any disk stalls


class AgentInput:
    """The input of an agent: messages and heartbeats, one at a time. Thread-safe.

    Whoever announces bulk data keeps its `turn` until all of it is written: a heartbeat would count as a part of it.
    """

    def __init__(self, process: RemoteProcess) -> None:
        self.process = process
        self.turn = threading.RLock()

    def write(self, data: bytes) -> None:
        with self.turn:
            self.process.write(data, stall_s=STALL_S)

    def heartbeat(self) -> None:
        """Send a heartbeat, unless something else is being sent, or the agent leaves so much unread that none fits."""
        if not self.turn.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(
                Exception
            ):  # the thread that serves the node sees it too, and others need heartbeats
                self.process.write(HEARTBEAT, stall_s=0)
        finally:
            self.turn.release()


class Heartbeats:
    """Sends heartbeats to every agent in it, from one thread, which runs while there is any agent."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._inputs: set[AgentInput] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, agent: AgentInput) -> None:
        with self._changed:
            self._inputs.add(agent)
            if self._thread is None:
                self._thread = threading.Thread(target=self._heartbeat, name="heartbeats", daemon=True)
                self._thread.start()

    def remove(self, agent: AgentInput) -> None:
        with self._changed:
            self._inputs.discard(agent)
            self._changed.notify_all()

    def _heartbeat(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._inputs, self.every_s):
                    self._thread = None
                    return
                inputs = list(self._inputs)
            for agent in inputs:
                agent.heartbeat()
