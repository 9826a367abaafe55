"""Detects processes that neither end nor make progress, and acts on them.

Only processes that send messages are watched, and trainers that others have been waiting for. Every message of a
trainer is a sign of life: it reports steps at most a second apart, and while it waits for others, that it waits. So the
silent one is the one that the others wait for. A pserver has to answer a ping, in which all of its lanes take part; as
long as the save that it writes or reads advances, it is busy. A process that is stopped by a signal is silent, too.
Only the lead can see that all trainers of the run wait for each other, or for one that has never sent a message; the
pace of each process is reported to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from clusterctl.agent.lead.messages import AwaitedOrder, PaceReport, StacksOrder
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import EventRecorder, RunContext
from clusterctl.common.events import StalledEvent
from clusterctl.common.files import mark
from clusterctl.common.paths import RunPaths
from clusterctl.common.procfs import Identity, identify, is_alive, stat_fields
from clusterctl.common.safe_json import is_whole

TURNS = 4  # checks within the time after which a process is stalled
LONGEST_PERIOD_S = 5.0
SLACK_S = 1.0  # trainers report steps once a second
STACKS_S = 1.0  # to write them, before the process is killed
MOST_NAMED = 4
MOST_AWAITED = 1024  # in a report to the lead
STOPPED, UNINTERRUPTIBLE = "T", "D"
HOW_IT_IS = {STOPPED: " (it is stopped by a signal)", UNINTERRUPTIBLE: " (it is waiting for a disk or device)"}


class Watch:
    """The signs of life of one process: the last one, the ping that it has not answered, the state before it stalled.

    `speaker` handles the signal for its stacks; it may be a descendant of the process that we started. `pace` is the
    one last reported to the lead. A pserver that writes or reads files reported its `progress`, new at `advanced`.
    """

    def __init__(self, heard: float) -> None:
        self.heard = heard
        self.pinged: float | None = None
        self.speaker: Identity | None = None
        self.signal = 0
        self.before = ""
        self.pace = "moves"
        self.progress: object = None
        self.advanced = heard
        self.connected = True


class Watchdog:
    """Finds stalled processes among `children`, and tells the lead when their pace changes: `messages.PaceReport`."""

    def __init__(self, context: RunContext, children: Callable[[], Sequence[Child]]) -> None:
        spec = context.spec
        self.stall_s = spec.failures.stall_s
        self.ping_s = min(
            self.stall_s, spec.timing.node_grace_s
        )  # trainers do not wait much longer for an answer either
        self.period_s = min(LONGEST_PERIOD_S, self.ping_s / TURNS)
        self._fails = spec.failures.on_stall == "fail"
        self._context = context
        self._children = children
        self._watched: dict[Child, Watch] = {}
        self._awaited: dict[str, int] = {}  # trainers that others wait for, with the attempt
        self._looked = context.loop.now()
        context.loop.every(self.period_s, self.look)

    def receive(self, child: Child, message: Mapping[str, Any]) -> None:
        """Note a message of a process as a sign of life."""
        now = self._context.loop.now()
        watch = self._watched.setdefault(child, Watch(now))
        event = message["event"]
        watch.connected = True
        if event == "stacks":
            watch.speaker, watch.signal = _speaker(child, message), _signal_number(message.get("signal"))
        elif event == "pong":
            watch.pinged = None
        elif child.serves:
            return
        watch.heard = now
        if child.state == "stalled":
            self._recovered(child, watch)
        is_busy = event == "pong" and self._advances(watch, message.get("progress"), now)
        self._set_pace(child, watch, "waits" if self._waits_long(message) else "busy" if is_busy else "moves", message)

    def _advances(self, watch: Watch, progress: object, now: float) -> bool:
        """True if a pserver is busy, and has advanced within the time after which a process is stalled."""
        if progress != watch.progress:
            watch.progress, watch.advanced = progress, now
        return progress is not None and now - watch.advanced <= self.stall_s

    def _waits_long(self, message: Mapping[str, Any]) -> bool:
        """True if it has waited somewhat longer than others may be silent: silent processes are found first."""
        for_s = message.get("for_s")
        if message["event"] != "waiting" or not isinstance(for_s, (int, float)):
            return False
        return self.stall_s + SLACK_S + 2 * self.period_s < for_s < math.inf

    def _set_pace(self, child: Child, watch: Watch, pace: str, message: Mapping[str, Any]) -> None:
        """Report the pace of a process to the lead if it has changed."""
        if pace != watch.pace:
            watch.pace = pace
            report: PaceReport = {
                "do": "pace",
                "pace": pace,
                "role": child.role,
                "rank": child.rank,
                "attempt": child.attempt,
            }
            if pace == "waits":
                awaited = _awaited(message, child.rank)
                report["for_s"], report["message"], report["awaits"] = message["for_s"], _words_of(awaited), awaited
            self._context.send(report)

    def carry_out(self, order: StacksOrder | AwaitedOrder) -> None:
        """Carry out an order of the lead."""
        if order["do"] == "stacks":
            self.show_stacks(order["message"])
        else:
            self._awaited[name_of((order["role"], order["rank"]))] = order["attempt"]

    def show_stacks(self, words: str) -> None:
        """Ask all processes that can to write their stacks, and write the reason into their logs."""
        for child in self._children():
            watch = self._watched.get(child)
            if watch is not None and child.alive:
                self._ask_for_stacks(child, watch, words)

    def look(self) -> None:
        """Find silent processes. Time in which the supervisor itself did not run does not count."""
        now, looked = self._context.loop.now(), self._looked
        self._looked = now
        self._watched = {child: watch for child, watch in self._watched.items() if child.alive}
        away_s = max(0.0, now - looked - 2 * self.period_s)
        for child in self._children():
            watch = self._watch(child, now)
            if watch is None or self._context.is_over():
                continue
            watch.heard = min(now, watch.heard + away_s)
            watch.pinged = None if watch.pinged is None else min(now, watch.pinged + away_s)
            silent_s = self._silent_s(child, watch, now)
            if silent_s > 0 and child.state in ("running", "ready"):
                self._stalled(child, watch, silent_s)
            elif child.serves and watch.pinged is None:
                watch.pinged = now
                child.send({"cmd": "ping"})

    def _watch(self, child: Child, now: float) -> Watch | None:
        """The watch of a live process that sends messages, or that others wait for; clusterctl's pservers are always
        watched. The time of one that has never sent a message counts from its start, which may be after the order.
        """
        if not child.alive:
            return None
        if self._awaited.get(child.name) == child.attempt and child not in self._watched:
            watch = self._watched[child] = Watch(now - child.lived_s(time.time()))
            watch.connected = False
        if child.role == "pserver" and child.plan.ours and child.state == "ready":
            return self._watched.setdefault(child, Watch(now))
        return self._watched.get(child)

    def _silent_s(self, child: Child, watch: Watch, now: float) -> float:
        """Seconds without a sign of life if these are too many, else 0."""
        if child.serves:
            silent_s = 0.0 if watch.pinged is None else now - watch.pinged
            return silent_s if silent_s > self.ping_s else 0.0
        silent_s = now - watch.heard
        return silent_s if silent_s > self.stall_s + SLACK_S else 0.0

    def _stalled(self, child: Child, watch: Watch, silent_s: float) -> None:
        watch.before, child.state = child.state, "stalled"
        self._set_pace(child, watch, "stalled", {})
        limit_s = self.ping_s if child.serves else self.stall_s
        lack = "has not answered" if child.serves else "has made no step" if watch.connected else "has not connected"
        state = _state_of(watch.speaker or child.identity)
        how = HOW_IT_IS.get(state, "")
        awaited = "" if watch.connected else ", and others wait for it"
        words = f"{lack} for {limit_s:g} s{awaited}: stalled{how}"
        event: StalledEvent = {
            "event": "stalled",
            "stalled_s": round(silent_s, 1),
            "halted": state == STOPPED,
            "message": words,
        }
        if not watch.connected:
            event["unconnected"] = True
        self._context.record(event, child)
        has_stacks = self._ask_for_stacks(child, watch, f"{child.name} {words}")
        if self._fails:
            child.stalled = f"stalled for {limit_s:g} s{'' if watch.connected else ' before connect()'}{how}"
            self._context.loop.after(STACKS_S if has_stacks else 0.0, lambda: self._kill(child))

    def _ask_for_stacks(self, child: Child, watch: Watch, words: str) -> bool:
        """Ask for stacks if the process has reported a signal for that; the signal would kill any other process."""
        if watch.speaker is None or not watch.signal or not is_alive(watch.speaker):
            return False
        child.remark(f"{words}; the stacks of its threads follow")
        try:
            os.kill(watch.speaker.pid, watch.signal)
        except OSError:
            return False
        return True

    def _recovered(self, child: Child, watch: Watch) -> None:
        child.state, child.stalled = watch.before, None
        words = "answers again" if child.serves else "goes on"
        self._context.record({"event": "stalled", "over": True, "state": child.state, "message": words}, child)

    def _kill(self, child: Child) -> None:
        """Kill its process group. It counts as a failure of the process."""
        if child.state == "stalled" and not self._context.is_over():
            child.signal(signal.SIGKILL)


def _awaited(message: Mapping[str, Any], own_rank: int) -> list[str]:
    """The names of the processes that a trainer waits for, as it reports them; its message may be malformed."""
    ranks, pserver = message.get("trainers"), message.get("pserver")
    named = [n for n in ranks if is_whole(n) and n != own_rank][:MOST_AWAITED] if isinstance(ranks, list) else []
    if named:
        return [f"trainer{rank}" for rank in named]
    return [f"pserver{pserver}"] if is_whole(pserver) else []


def _words_of(awaited: Sequence[str]) -> str:
    return ", ".join(awaited[:MOST_NAMED]) or "others"


def _state_of(process: Identity | None) -> str:
    """The letter of a process's state in /proc; "" if it is gone."""
    fields = stat_fields(process.pid) if process is not None else None
    return fields[0] if fields else ""


def _speaker(child: Child, message: Mapping[str, Any]) -> Identity | None:
    """The process that sent a message, if it is in the child's session; others are not signalled."""
    pid = message.get("pid")
    fields = stat_fields(pid) if isinstance(pid, int) and pid > 0 else None
    if fields is None or child.identity is None or int(fields[3]) != child.identity.pid:
        return None
    return identify(int(message["pid"]))


def _signal_number(value: object) -> int:
    """The number of a signal that a program can handle, else 0."""
    if not isinstance(value, int) or value in (signal.SIGKILL, signal.SIGSTOP):
        return 0
    return value if 0 < value < signal.NSIG else 0


MOST_BYTES = 1000


class LockWatch:
    """The lock of the job of `run`, held by `fd`.

    A new life of the job writes another name into it, or puts another in its place.
    """

    def __init__(self, run: RunPaths, fd: int, record: EventRecorder) -> None:
        self._run = run
        self._job = run.job
        self._fd = fd
        self._record = record
        self._is_over = False
        self._ours = b""
        with contextlib.suppress(OSError):
            self._ours = os.pread(fd, MOST_BYTES, 0)

    def look(self) -> None:
        """Stop the run here if the lock is no longer ours."""
        if self._is_over or not self._ours or not self._is_taken():
            return
        self._is_over = True
        message = "another machine has taken this job over; ending its processes here"
        self._record({"event": "log", "level": "error", "message": message})
        with contextlib.suppress(OSError):
            mark(self._run.stop_asked)  # the signal does not come from outside
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_taken(self) -> bool:
        with contextlib.suppress(OSError):  # a file that is gone from a server is stale
            if os.fstat(self._fd).st_nlink:
                return os.pread(self._fd, MOST_BYTES, 0) != self._ours
        return self._job.lock.exists()
