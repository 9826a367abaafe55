"""Explains why processes ended: exit codes, signals, exceeded limits, kills by the kernel.

MEMORY_LIMIT_MB is RLIMIT_AS, which counts address space, and OPEN_FILES is RLIMIT_NOFILE. The kernel counts the
processes that it kills for lack of memory: for the control group if that is readable, else for the whole machine.
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
from clusterctl.common.events import ExitFacts, FailureFacts
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import Limits
from clusterctl.common.safe_json import is_whole
from clusterctl.common.schema import typed

LOOK_S = 10.0  # a large process may take seconds to exit
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
NOT_CONNECTED, NOT_LEFT = "not_connected", "not_left"
UNFINISHED: Mapping[str, str] = {
    NOT_CONNECTED: "before it connected to the pservers (set PSERVERS = 0 if it needs none)",
    NOT_LEFT: "without leaving the run",
}
FENCED = "was killed by the guardian of its node: the lead had not answered for too long"
SEGFAULT, OUT_OF_MEMORY = "segfault", "out_of_memory"
TIMED_OUT: FailureFacts = {"errno": None, "timed_out": True}
MOST_PEERS = 16
PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE|errno\W+98\b", re.IGNORECASE)


class Shortage(NamedTuple):
    """A resource that a program ran out of. `reason` is its name in `clusterctl why`, `limit` its setting, if set."""

    reason: str
    limit: Optional[str]
    message: str


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


class ExitExplanation(ExitFacts):
    """The message about an exit, and its facts."""

    message: str


class ExitClassifier:
    """Explains exits that were not requested."""

    def __init__(self, context: RunContext) -> None:
        self._limits = context.spec.limits
        self._kills = OomKills()
        context.loop.every(LOOK_S, self._kills.look)

    def receive(self, child: Child, message: Mapping[str, Any]) -> None:
        """Note a message that explains a later exit: a failure that a restart would repeat, or a pserver's silence."""
        if (message["event"], message.get("action")) in (("nan", "failed"), ("tables_differ", None)):
            child.hopeless = str(message.get("message"))
        elif message["event"] == "unanswered" and is_whole(message.get("pserver")) and message["pserver"] >= 0:
            child.peers = [*child.peers, f"pserver{message['pserver']}"][-MOST_PEERS:]
        elif message["event"] == "step":
            child.peers = []

    def explain(self, child: Child, tail: Sequence[str], unfinished: str | None = None) -> ExitExplanation:
        """The message about an exit, and its facts. `oom`, `stalled`, `fenced` and `hopeless` are present only if true.

        `unfinished` is the reason why an exit with code 0 is a failure, and present only then.
        """
        explanation = self._explain(child, tail)
        if unfinished is None:
            return explanation
        message = f"{describe_exit(0)} {UNFINISHED[unfinished]}"
        return typed(ExitExplanation, {**explanation, "message": message, "unfinished": unfinished})

    def _explain(self, child: Child, tail: Sequence[str]) -> ExitExplanation:
        code = child.exit_code or 0
        if child.stalled is not None:
            return {"message": child.stalled, "stalled": True, "reason": None, "limit": None, "peers": child.peers}
        if child.fenced:
            return {"message": FENCED, "fenced": True, "reason": None, "limit": None, "peers": child.peers}
        if self._kills.claim(code):
            message = describe_exit(code, oom=True)
            return {"message": message, "oom": True, "reason": OUT_OF_MEMORY, "limit": None, "peers": child.peers}
        reason, message = SEGFAULT if code == -signal.SIGSEGV else None, describe_exit(code)
        if child.hopeless is not None:
            message = f"{message}: {child.hopeless}"
            return {"message": message, "hopeless": True, "reason": reason, "limit": None, "peers": child.peers}
        short = shortage(tail, self._limits)
        if short is None:
            return {"message": message, "reason": reason, "limit": None, "peers": child.peers}
        message = f"{message} ({short.message})"
        return {"message": message, "reason": short.reason, "limit": short.limit, "peers": child.peers}


class OomKills:
    """Out-of-memory kills by the kernel. Each is attributed to one process that was killed by SIGKILL."""

    def __init__(self, read: Callable[[], int] | None = None) -> None:
        self._read = read or count_oom_kills
        self._before = self._last = self._read()

    def look(self) -> None:
        """Forget kills that no process claimed; to be called every LOOK_S."""
        self._before, self._last = self._last, self._read()

    def claim(self, exit_code: int) -> bool:
        """Return True if a process that we did not kill ended by such a kill."""
        if exit_code != -signal.SIGKILL or self._read() <= self._before:
            return False
        self._before += 1
        self._last = max(self._last, self._before)
        return True


def count_oom_kills() -> int:
    """The number of such kills, as far as the kernel reports it."""
    for path in (*_group_files(), Path("/proc/vmstat")):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0


def _group_files() -> Iterator[Path]:
    """The files with the count of this process's control group, version 1 or 2; at the root in a container."""
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


def signal_from_outside(run: RunPaths, number: int) -> str | None:
    """Return the name of a signal that ended a supervisor; None if `stop` was called for the run on this node."""
    return None if run.stop_asked.exists() else signal.Signals(number).name


def system_error(exc: BaseException | None) -> FailureFacts:
    """`errno`, by name, of a system error; None for every other error."""
    if not isinstance(exc, OSError) or not exc.errno or exc.strerror != os.strerror(exc.errno):
        return {"errno": None}
    return {"errno": errno.errorcode.get(exc.errno)}


def found_port_taken(tail: Iterable[str]) -> bool:
    """Return True if the last lines of a program report that it could not bind its port."""
    return any(PORT_TAKEN.search(line) for line in tail)
