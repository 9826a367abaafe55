"""What a supervisor writes for others to read: its event log, which only grows, and its state, which is always anew."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from clusterctl.agent.child import Child
from clusterctl.agent.files import write_json
from clusterctl.agent.paths import RunPaths
from clusterctl.agent.processes import identify

Message = dict[str, Any]


class Chronicle:
    """Of one node's part of a run; `children` gives its processes as they are, `now` the reactor's time."""

    def __init__(
        self, run: RunPaths, node: int, children: Callable[[], Sequence[Child]], now: Callable[[], float]
    ) -> None:
        self._run = run
        self._node = node
        self._children = children
        self._now = now
        self._seq = _last_number(run)
        self._events = run.events.open("ab", buffering=0)
        self._me = identify(os.getpid())
        self._told: Message = {"phase": None, "ended": None, "last_event": None, "killed": 0}

    def note(self, event: Message, child: Child | None = None) -> None:
        """Appends to the event log."""
        self._seq += 1
        whole: Message = {"v": 1, "t": time.time(), "node": self._node, "seq": self._seq, **event}
        if child is not None:
            whole.update(role=child.role, rank=child.rank, attempt=child.attempt)
        with contextlib.suppress(OSError):  # a full disk: the lead hears of it by other means
            self._events.write(json.dumps(whole, separators=(",", ":")).encode() + b"\n")
        if event["event"] != "step":
            self._tell_state(whole)

    def _tell_state(self, event: Message) -> None:
        self._told["last_event"] = event
        if event["event"] == "ended":
            self._told["ended"] = event
        elif event["event"] == "phase":
            self._told["phase"] = event["phase"]
        self.write_state()

    def count_killed(self) -> None:
        """One more process that did not end by TERM."""
        self._told["killed"] += 1

    def write_state(self) -> None:
        """Rewrites state.json, which is what `status` reads."""
        now = self._now()
        state = {
            "v": 1,
            "t": time.time(),
            "supervisor": self._me,
            **self._told,
            "processes": [child.snapshot(now) for child in self._children()],
        }
        with contextlib.suppress(OSError):
            write_json(self._run.state, state, durable=False)


def _last_number(run: RunPaths) -> int:
    """The number of the last event that a supervisor before this one has written."""
    try:
        return len(run.events.read_bytes().splitlines())
    except OSError:
        return 0
