"""Finding and killing processes that a test may have left, by environment and by parent."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Proc:
    pid: int
    command: str


def processes_with_environment(name: str, *values: str) -> list[Proc]:
    """Return the other live processes of this user that were started with this variable at one of these values."""
    wanted = {f"{name}={value}".encode() for value in values}
    matches: list[Proc] = []
    for pid in _pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):  # a zombie has nothing to read
            if not wanted.isdisjoint(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                matches.append(Proc(pid, _command(pid)))
    return matches


def processes_below(directory: Path) -> list[Proc]:
    """Return the other live processes that have a file below a directory open or as an argument.

    A process without a command line has run its last instruction: the kernel has removed its memory, and closes its
    files next.
    """
    matches: list[Proc] = []
    for pid in _pids():
        command = _command(pid)
        if pid != os.getpid() and command:
            with contextlib.suppress(OSError):
                links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
                if f"{directory}/" in command or any(link.startswith(f"{directory}/") for link in links):
                    matches.append(Proc(pid, command))
    return matches


def wait_for_environment(pid: int) -> None:
    """Wait until a process that was just started can be found by its environment.

    `Popen` returns while exec is still going on: the kernel closes descriptors before it sets the environment.
    """
    assert wait_until(lambda: bool(Path(f"/proc/{pid}/environ").read_bytes()))


def assert_none_left(name: str, value: str) -> None:
    """Fail and list the processes with this variable if any are left after three minutes."""
    wait_until(lambda: not processes_with_environment(name, value))
    left = processes_with_environment(name, value)
    assert not left, f"processes left with {name}={value}: {left}"


def wait_until(condition: Callable[[], bool], deadline_s: float = 180, every_s: float = 0.05) -> bool:
    """Wait for a condition; return True if it became true in time. On a busy machine, anything may take long.

    A condition that takes long itself, such as a command, is asked half of the time at most.
    """
    end = time.monotonic() + deadline_s
    while True:
        asked = time.monotonic()
        if condition():
            return True
        answered = time.monotonic()
        if answered > end:
            return False
        time.sleep(max(every_s, answered - asked))


def is_alive(pid: int) -> bool:
    """Return True if there is such a process and it is not a zombie.

    The first thread of a killed process may end before the others, which keep its sockets open.
    """
    stat = _stat(pid)
    return bool(stat) and (stat[0] not in (b"Z", b"X") or int(stat[17]) > 1)


def descendants(root: int) -> list[int]:
    """Return all descendants of a process, without itself."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat:
            children.setdefault(int(stat[1]), []).append(pid)
    pids: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        pids += below
        todo += below
    return pids


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name: state, parent, ..."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat[stat.rindex(b")") + 2 :].split()


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"
