"""Limits of processes: set before a program begins, and recognised when it has died of one; exits in words.

MEMORY_LIMIT_MB is RLIMIT_AS, which counts address space, and OPEN_FILES is RLIMIT_NOFILE. What the kernel kills for
want of memory it counts: for the control group, where that can be read, else for the whole machine.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.run_spec import Limits
from clusterctl.common.safe_json import is_whole

LOOK_S = 10.0  # a large process may take seconds to end
NO_MEMORY = re.compile(r"^(\w+\.)*_?(Array)?MemoryError\b|\[Errno 12\]|std::bad_alloc")
NO_FILES = re.compile(r"\[Errno 24\]|\bToo many open files\b")
SHORTAGES = (
    (NO_MEMORY, "out_of_memory", "out of memory", "MEMORY_LIMIT_MB"),
    (NO_FILES, "open_files", "too many open files", "OPEN_FILES"),
)
CRASHES: Mapping[int, str] = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
}
SEGFAULT, OUT_OF_MEMORY = "segfault", "out_of_memory"
MOST_PEERS = 16
Message = dict[str, Any]
PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE|errno\W+98\b", re.IGNORECASE)


class Shortage(NamedTuple):
    """A resource that a program ran out of. `reason` is what `clusterctl why` calls it, `limit` its setting, if set."""

    reason: str
    limit: Optional[str]  # noqa: UP045 - evaluated at run time on python 3.9
    message: str

    def facts(self) -> Message:
        return {"reason": self.reason, "limit": self.limit}


def shortage(tail: Sequence[str], limits: Limits) -> Shortage | None:
    """The shortage that a program's last line reports, if it reports one."""
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    for pattern, reason, words, setting in SHORTAGES:
        if pattern.search(last):
            limit = getattr(limits, setting.lower())
            if limit is None:
                return Shortage(reason, None, words)
            return Shortage(reason, setting, f"{words}: {setting} = {limit}")
    return None


class ExitClassifier:
    """Why processes that nobody meant to end have ended."""

    def __init__(self, context: RunContext) -> None:
        self._limits = context.spec.limits
        self._kills = OomKills()
        context.loop.every(LOOK_S, self._kills.look)

    def receive(self, child: Child, message: Mapping[str, Any]) -> None:
        """A process said something: perhaps that it ends because of numbers that will be the same next time, or
        because a pserver has not answered."""
        if message["event"] == "nan" and message.get("action") == "failed":
            child.hopeless = str(message.get("message"))
        elif message["event"] == "unanswered" and is_whole(message.get("pserver")) and message["pserver"] >= 0:
            child.peers = [*child.peers, f"pserver{message['pserver']}"][-MOST_PEERS:]
        elif message["event"] == "step":
            child.peers = []

    def explain(self, child: Child, tail: Sequence[str]) -> Message:
        """`message`, and the facts in it for programs to read.

        `oom`, `stalled` and `hopeless` are there where they hold. `reason` is the reason that the message gives, as
        `clusterctl why` names it, `limit` the setting that was exceeded, `peers` the processes that did not answer.
        """
        facts: Message = {"reason": None, "limit": None, "peers": child.peers}
        code = child.exit_code or 0
        if child.stalled is not None:
            return {**facts, "message": child.stalled, "stalled": True}
        if self._kills.claim(code):
            return {**facts, "message": describe_exit(code, oom=True), "oom": True, "reason": OUT_OF_MEMORY}
        facts["reason"] = SEGFAULT if code == -signal.SIGSEGV else None
        if child.hopeless is not None:
            return {**facts, "message": f"{describe_exit(code)}: {child.hopeless}", "hopeless": True}
        short = shortage(tail, self._limits)
        if short is None:
            return {**facts, "message": describe_exit(code)}
        return {**facts, "message": f"{describe_exit(code)} ({short.message})", **short.facts()}


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
    """The way a process ended, as a predicate; `oom` is true if the kernel killed it for lack of memory."""
    if oom:
        return "was killed by the kernel: out of memory"
    if code >= 0:
        return f"exited with code {code}"
    if -code in CRASHES:
        return f"crashed with signal {-code} ({CRASHES[-code]})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = ""
    return f"was killed by signal {-code}" + (f" ({name})" if name and -code != signal.SIGKILL else "")


def system_error(exc: BaseException | None) -> dict[str, Any]:
    """`errno`, by name, of an error of the system; None for every other error."""
    if not isinstance(exc, OSError) or not exc.errno or exc.strerror != os.strerror(exc.errno):
        return {"errno": None}
    return {"errno": errno.errorcode.get(exc.errno)}


def found_port_taken(tail: Iterable[str]) -> bool:
    """Whether the last words of a program are that it could not bind its port."""
    return any(PORT_TAKEN.search(line) for line in tail)
