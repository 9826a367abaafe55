"""The files that a supervisor writes for others: its event log, which only grows, and its state, which is rewritten."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.agent.supervisor.child import Child, process_of
from clusterctl.common.events import Event, RunWarning
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import RunPaths
from clusterctl.common.procfs import Identity, boot_id, identify
from clusterctl.common.run_state import ProcessState, RunState

RESERVE_BYTES = 1 << 16
SNAPSHOT_S = 1.0
PAUSED_S = 3.0  # after which other nodes suspect this one
CAN_BE_MISSED = ("step", "pass", "saved", "usage")  # on a full disk, to leave room for later events
NOT_IN_STATE = ("step", "usage")  # too frequent to rewrite the state for each


class Reserve:
    """Disk space that is reserved for the last events of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.suppress(OSError):  # then there is no reserve
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Free the space. Return True if there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


class EventLog:
    """The log and state of one node's part of a run. `children` returns its processes, `now` the loop's time.

    `is_away()` is true while the run is lost as far as this node knows, which may become a spare at best.
    """

    def __init__(
        self,
        run: RunPaths,
        node: int,
        children: Callable[[], Sequence[Child]],
        now: Callable[[], float],
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run = run
        self._node = node
        self._children = children
        self._now = now
        self._is_away = is_away
        self._seq = _last_number(run)
        self._events = run.events.open("ab", buffering=0)
        self._torn = b""
        self._reserve = Reserve(run.dir / "reserve")
        self._me = identify(os.getpid())
        self._beat_t = _boot_s()
        self._state: RunState[ProcessState] = RunState(lambda event: ProcessState(event["role"], event["rank"]))
        self._state.warnings = (read_json(run.state) or {}).get("warnings") or []
        self._last_event: Mapping[str, Any] | None = None
        self._killed = 0

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """The warnings of the run so far, also those that a supervisor before this one recorded; on the lead's node."""
        return self._state.warnings

    def record(self, event: Event, child: Child | None = None) -> None:
        """Append an event of ours, about the node or a process."""
        line = self._write_event(event, child)
        self._state.take(line)
        self._update_state(line)

    def forward(self, event: Mapping[str, Any], child: Child) -> None:
        """Append an event that a process reported, once it is checked."""
        self._update_state(self._write_event(event, child))

    def _write_event(self, event: Mapping[str, Any], child: Child | None) -> Mapping[str, Any]:
        self._notice_pause()
        self._seq += 1
        line = {"v": 1, "t": time.time(), "node": self._node, "seq": self._seq, **event}
        if child is not None:
            line.update(process_of(child))
        self._append(json.dumps(line, separators=(",", ":")).encode() + b"\n", event["event"] not in CAN_BE_MISSED)
        return line

    def _append(self, line: bytes, needed: bool) -> None:
        """Append a line; a partly written one is completed first. The lead is informed of a full disk in other ways."""
        data = self._torn + line
        left = self._write(data)
        if left and needed and self._reserve.release():
            left = self._write(left)
        if len(left) < len(data):
            self._torn = left

    def _write(self, data: bytes) -> bytes:
        """Write to the log. Return the part that could not be written."""
        with contextlib.suppress(OSError):
            return data[self._events.write(data) or 0 :]
        return data

    def _update_state(self, event: Mapping[str, Any]) -> None:
        if event["event"] in NOT_IN_STATE:
            return
        self._last_event = event
        self.write_state(needed=event["event"] not in CAN_BE_MISSED)
        if event["event"] == "ended":
            self._reserve.release()

    def heartbeat(self) -> None:
        """Rewrite the state, notice pauses and record the use of CPU and memory; to be called every SNAPSHOT_S."""
        self._notice_pause()
        self._beat_t = _boot_s()
        for child in self._children():
            usage = child.usage_event(self._now())
            if usage is not None:
                self.record(usage, child)
        self.write_state()

    def _notice_pause(self) -> None:
        """Record a pause of this process before any event that follows it."""
        paused_s = _boot_s() - self._beat_t - SNAPSHOT_S
        if paused_s > PAUSED_S:
            self._beat_t += paused_s
            why = "stopped by a signal, a machine that was suspended, or one that is overloaded"
            message = f"the supervisor did not run for {paused_s:.0f} s: {why}"
            self.record({"event": "paused", "paused_s": round(paused_s, 1), "message": message})

    def take_over(self) -> None:
        """Record that this supervisor replaces one that is gone, when that was last seen, and if the node rebooted."""
        before = read_json(self._run.state) or {}
        replaced = Identity(*before["supervisor"]) if before.get("supervisor") else None
        message = "a new supervisor replaces one that is gone"
        rebooted = replaced is not None and replaced.boot != boot_id()
        self.record({"event": "took_over", "seen": before.get("t"), "rebooted": rebooted, "message": message})

    def count_killed(self) -> None:
        """Count a process that did not end on TERM."""
        self._killed += 1

    def write_state(self, *, needed: bool = False) -> None:
        """Rewrite state.json, which `status` reads. If it is `needed`, use the reserved space."""
        now = self._now()
        state = {
            "v": 1,
            "t": time.time(),
            "supervisor": self._me,
            "phase": self._state.phase,
            "ended": self._state.ended,
            "last_event": self._last_event,
            "killed": self._killed,
            "waits_for": self._state.waits_for,
            "cut_dropped": self._state.cut_dropped,
            "warnings": self._state.warnings,
            "processes": [child.snapshot(now) for child in self._children()],
            **({"away": True} if self._is_away() else {}),
        }
        with contextlib.suppress(OSError):
            try:
                write_json(self._run.state, state, durable=False)
            except OSError:
                if not (needed and self._reserve.release()):
                    raise
                write_json(self._run.state, state, durable=False)


def _boot_s() -> float:
    """A clock that runs while the machine is suspended, and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _last_number(run: RunPaths) -> int:
    """The number of the last event that an earlier supervisor wrote."""
    try:
        return len(run.events.read_bytes().splitlines())
    except OSError:
        return 0
