"""Limits of processes: set before a program begins, and recognised when it has died of one; endings in words.

MEMORY_LIMIT_MB is RLIMIT_AS, which counts address space, and OPEN_FILES is RLIMIT_NOFILE. What the kernel kills for
want of memory it counts: for the control group, where that can be read, else for the whole machine.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.run_spec import Limits

LOOK_S = 10.0  # a large process may take seconds to end
NO_MEMORY = re.compile(r"^(\w+\.)*_?(Array)?MemoryError\b|\[Errno 12\]|std::bad_alloc")
NO_FILES = re.compile(r"\[Errno 24\]|\bToo many open files\b")
Message = dict[str, Any]
PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE|errno\W+98\b", re.IGNORECASE)


def limit_met(tail: Sequence[str], limits: Limits) -> str | None:
    """Which setting a program's last line says that it died of, in words; None if of none."""
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    if NO_MEMORY.search(last):
        limit = limits.memory_limit_mb
        return "out of memory" + (f": MEMORY_LIMIT_MB = {limit}" if limit is not None else "")
    if NO_FILES.search(last):
        limit = limits.open_files
        return "too many open files" + (f": OPEN_FILES = {limit}" if limit is not None else "")
    return None


class Endings:
    """Why processes that nobody meant to end have ended."""

    def __init__(self, context: RunContext) -> None:
        self._limits = context.spec.limits
        self._kills = OomKills()
        context.loop.every(LOOK_S, self._kills.look)

    def hear(self, child: Child, message: Message) -> None:
        """A process said something: perhaps that it ends because of numbers that will be the same next time."""
        if message["event"] == "nan" and message.get("action") == "failed":
            child.hopeless = str(message.get("message"))

    def explain(self, child: Child, tail: Sequence[str]) -> Message:
        """`message`, and what its reader may go by: `oom`, `stalled`, `hopeless`, where they hold."""
        code = child.exit_code or 0
        if child.stalled is not None:
            return {"message": child.stalled, "stalled": True}
        if self._kills.claim(code):
            return {"message": describe_exit(code, oom=True), "oom": True}
        if child.hopeless is not None:
            return {"message": f"{describe_exit(code)}: {child.hopeless}", "hopeless": True}
        limit = limit_met(tail, self._limits)
        return {"message": describe_exit(code) + (f" ({limit})" if limit else "")}


class OomKills:
    """Kills of the kernel for want of memory; each is claimed by one process that ended by SIGKILL."""

    def __init__(self, read: Callable[[], int] | None = None) -> None:
        self._read = read or count_oom_kills
        self._before = self._last = self._read()

    def look(self) -> None:
        """To be called every LOOK_S: what nobody has claimed for so long was of others."""
        self._before, self._last = self._last, self._read()

    def claim(self, exit_code: int) -> bool:
        """Whether the end of a process, by no kill of ours, is such a kill."""
        if exit_code != -signal.SIGKILL or self._read() <= self._before:
            return False
        self._before += 1
        self._last = max(self._last, self._before)
        return True


def count_oom_kills() -> int:
    """How many there were, as far as the kernel tells us."""
    for path in (*_group_files(), Path("/proc/vmstat")):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0


def _group_files() -> Iterator[Path]:
    """Where the control group of this process counts: version 1 and 2; in a container it is at the root."""
    top = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for path in (group.lstrip("/"), ""):
            if "memory" in controllers.split(","):
                yield top / "memory" / path / "memory.oom_control"
            elif not controllers:
                yield top / path / "memory.events"


def describe_exit(code: int, *, oom: bool = False) -> str:
    """How a process ended, in words; `oom` says that the kernel killed it for want of memory."""
    if oom:
        return "was killed by the kernel: out of memory"
    if code >= 0:
        return f"ended with exit code {code}"
    words = {signal.SIGKILL: "killed", signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "aborted"}
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by signal {-code} ({words.get(number, number.name)})"


def found_port_taken(tail: Iterable[str]) -> bool:
    """Whether the last words of a program are that it could not bind its port."""
    return any(PORT_TAKEN.search(line) for line in tail)
