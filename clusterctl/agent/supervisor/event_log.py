"""What a supervisor writes for others to read: its event log, which only grows, and its state, which is always anew."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.agent.supervisor.child import Child
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import RunPaths
from clusterctl.common.procfs import Identity, boot_id, identify

RESERVE_BYTES = 1 << 16
SNAPSHOT_S = 1.0
PAUSED_S = 3.0  # after which the others suspect something
CAN_BE_MISSED = ("step", "pass", "saved")  # on a full disk, for the sake of what comes after
Message = dict[str, Any]


class Reserve:
    """Space on the disk that is kept for a run's last words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.suppress(OSError):  # then there is none
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Whether there is more space now than before."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


class EventLog:
    """Of one node's part of a run; `children` gives its processes as they are, `now` the loop's time."""

    def __init__(
        self, run: RunPaths, node: int, children: Callable[[], Sequence[Child]], now: Callable[[], float]
    ) -> None:
        self._run = run
        self._node = node
        self._children = children
        self._now = now
        self._seq = _last_number(run)
        self._events = run.events.open("ab", buffering=0)
        self._torn = b""
        self._reserve = Reserve(run.dir / "reserve")
        self._me = identify(os.getpid())
        self._beat_t = _boot_s()
        self._told: Message = {"phase": None, "ended": None, "last_event": None, "killed": 0, "waits_for": []}

    def record(self, event: Message, child: Child | None = None) -> None:
        """Appends to the event log."""
        self._notice_pause()
        self._seq += 1
        whole: Message = {"v": 1, "t": time.time(), "node": self._node, "seq": self._seq, **event}
        if child is not None:
            whole.update(role=child.role, rank=child.rank, attempt=child.attempt)
        self._append(json.dumps(whole, separators=(",", ":")).encode() + b"\n", event["event"] not in CAN_BE_MISSED)
        if event["event"] != "step":
            self._update_state(whole)

    def _append(self, line: bytes, needed: bool) -> None:
        """Of a full disk the lead hears by other means; a line of which a part was written is made whole first."""
        data = self._torn + line
        left = self._write(data)
        if left and needed and self._reserve.release():
            left = self._write(left)
        if len(left) < len(data):
            self._torn = left

    def _write(self, data: bytes) -> bytes:
        """What could not be written."""
        with contextlib.suppress(OSError):
            return data[self._events.write(data) or 0 :]
        return data

    def _update_state(self, event: Message) -> None:
        self._told["last_event"] = event
        self._told["waits_for"] = _waits_for(self._told["waits_for"], event)
        if event["event"] == "ended":
            self._told["ended"] = event
        elif event["event"] == "phase":
            self._told["phase"] = event["phase"]
        self.write_state(needed=event["event"] not in CAN_BE_MISSED)
        if event["event"] == "ended":
            self._reserve.release()

    def beat(self) -> None:
        """To be called every SNAPSHOT_S: the state anew, and whether we have slept ourselves."""
        self._notice_pause()
        self._beat_t = _boot_s()
        self.write_state()

    def _notice_pause(self) -> None:
        """Before anything is told of what was found after it."""
        paused_s = _boot_s() - self._beat_t - SNAPSHOT_S
        if paused_s > PAUSED_S:
            self._beat_t += paused_s
            why = "stopped by a signal, a machine that was suspended, or one that is overloaded"
            message = f"the supervisor did not run for {paused_s:.0f} s: {why}"
            self.record({"event": "paused", "paused_s": round(paused_s, 1), "message": message})

    def take_over(self) -> None:
        """Another supervisor of this run was here, and is gone: when it was last seen, and whether the node was too."""
        before = read_json(self._run.state) or {}
        who = Identity(*before["supervisor"]) if before.get("supervisor") else None
        message = "a new supervisor takes the place of one that is gone"
        rebooted = who is not None and who.boot != boot_id()
        self.record({"event": "took_over", "seen": before.get("t"), "rebooted": rebooted, "message": message})

    def count_killed(self) -> None:
        """One more process that did not end by TERM."""
        self._told["killed"] += 1

    def write_state(self, *, needed: bool = False) -> None:
        """Rewrites state.json, which is what `status` reads; when it is `needed`, with the space kept for that."""
        now = self._now()
        state = {
            "v": 1,
            "t": time.time(),
            "supervisor": self._me,
            **self._told,
            "processes": [child.snapshot(now) for child in self._children()],
        }
        with contextlib.suppress(OSError):
            try:
                write_json(self._run.state, state, durable=False)
            except OSError:
                if not (needed and self._reserve.release()):
                    raise
                write_json(self._run.state, state, durable=False)


def _waits_for(names: list[str], event: Message) -> list[str]:
    """Nodes and trainers that the run waits for, as the lead tells of them; they are mended by hand."""
    kind = event["event"]
    name = f"{event['role']}{event['rank']}" if "role" in event else f"node{event.get('node')}"
    if kind == "held" or (kind == "lost" and event.get("waits")):
        return [*(other for other in names if other != name), name]
    if kind == "rejoined":
        return [other for other in names if other != name]
    if kind == "rolled_back":  # all begin again, those that were given up too
        return [other for other in names if other.startswith("node")]
    return [] if kind == "ended" or event.get("phase") == "stopping" else names


def _boot_s() -> float:
    """A clock that goes on while the machine is suspended, and is set by nobody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _last_number(run: RunPaths) -> int:
    """The number of the last event that a supervisor before this one has written."""
    try:
        return len(run.events.read_bytes().splitlines())
    except OSError:
        return 0
