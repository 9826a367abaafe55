"""Processes of this user found by their environment, and ended without ever hitting a neighbour."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process as it was when we looked: its pid means it only together with its start ticks."""

    pid: int
    start_ticks: int


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or only its zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def alive(process: Process) -> bool:
    return start_ticks(process.pid) == process.start_ticks


def environment(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with; empty if we may not see it or it is gone."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def with_environment(name: str, value: str) -> list[Process]:
    """The living processes of this user that carry this variable, without us and our ancestors."""
    key, wanted, uid = os.fsencode(name), os.fsencode(value), os.getuid()
    ours = _ancestors()
    found: list[Process] = []
    for entry in os.scandir(PROC):
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != uid or environment(pid).get(key) != wanted:
                continue
            ticks = start_ticks(pid)
            if ticks is not None:
                found.append(Process(pid, ticks))
    return found


def end_all(
    find: Callable[[], Iterable[Process]], *, grace_s: float = 3.0, deadline_s: float = 20.0
) -> tuple[int, list[Process]]:
    """TERM, then after the grace KILL, all that `find` finds, again and again until it finds nothing.

    Returns how many processes were ended, and the survivors at the deadline, which are none but for
    processes stuck in the kernel.
    """
    seen: set[Process] = set()
    began = time.monotonic()
    while time.monotonic() - began < deadline_s:
        found = list(find())
        if not found:
            return len(seen), []
        late = time.monotonic() - began >= grace_s
        for process in found:
            if late or process not in seen:
                send(process, signal.SIGKILL if late else signal.SIGTERM)
        seen.update(found)
        _wait_for_one(found)
    survivors = list(find())
    return len(seen) - len(survivors), survivors


def send(process: Process, number: signal.Signals) -> None:
    """Signal this very process, never another one that got its pid."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(process.pid)
        try:
            if alive(process):
                signal.pidfd_send_signal(fd, number)
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        finally:
            os.close(fd)


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _wait_for_one(processes: Iterable[Process]) -> None:
    waiting = list(processes)
    wait_until(lambda: not all(alive(process) for process in waiting), 0.2)


def _ancestors() -> set[int]:
    pid, chain = os.getpid(), set[int]()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        try:
            stat = (PROC / str(pid) / "stat").read_bytes()
        except OSError:
            break
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return chain
