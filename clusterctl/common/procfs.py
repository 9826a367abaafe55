"""Processes of this node: identify, find and end them.

A pid alone does not identify a process: it is reused. A process is identified by (pid, start ticks, boot id). The
processes of a run are found by this account's uid and by the environment that every process of a run has.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

PROC = Path("/proc")
POLL_S = 0.02
LOOKS = 4  # at a process without an environment
ROUNDS, QUIET_ROUNDS = 20, 2  # of looking at processes started since the round before
NO_ENVIRONMENT = b"\0\0"
READ_BYTES = 1 << 16
KERNEL_THREAD = 0x00200000  # PF_KTHREAD among the flags of /proc/PID/stat
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_boot: list[str] = []
LIVE_STATES = ("starting", "ready", "running", "stalled")  # of a process of a run


class Identity(tuple):  # type: ignore[type-arg]  # python 3.9 has no generic base here
    """The identity of one process. `ticks` is its start time in clock ticks since boot. A handmade named tuple."""

    __slots__ = ()
    _fields = ("pid", "ticks", "boot")

    def __new__(cls, pid: int, ticks: int, boot: str) -> Identity:
        return tuple.__new__(cls, (pid, ticks, boot))

    @property
    def pid(self) -> int:
        return int(self[0])

    @property
    def ticks(self) -> int:
        return int(self[1])

    @property
    def boot(self) -> str:
        return str(self[2])

    def to_json(self) -> dict[str, int | str]:
        return dict(zip(self._fields, self))


def boot_id() -> str:
    """Return the id of this boot. It is read once."""
    if not _boot:
        _boot.append((PROC / "sys/kernel/random/boot_id").read_text().strip())
    return _boot[0]


def read_of(pid: int | str, name: str) -> bytes | None:
    """Return a file of /proc/PID; None if the process is gone, or another account's.

    A search reads thousands of them, and a file object takes longer than the rest.
    """
    try:
        fd = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    data = b""
    try:
        while piece := os.read(fd, READ_BYTES):
            data += piece
    except OSError:
        return None
    finally:
        os.close(fd)
    return data


def arguments_of(pid: int | str) -> list[bytes]:
    """Return the command line of a process; empty if it is gone or has none."""
    text = read_of(pid, "cmdline")
    return text.rstrip(b"\0").split(b"\0") if text else []


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, or None if there is no such process."""
    data = read_of(pid, "stat")
    if data is None:
        return None
    text = data.decode(errors="replace")
    return text.rpartition(")")[2].split()  # the command's name may hold spaces and brackets


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has `pid` now; None if there is none, or it is a zombie."""
    return named_by(pid, stat_fields(pid))


def named_by(pid: int, fields: list[str] | None) -> Identity | None:
    """Return the identity of the process whose /proc/PID/stat holds `fields`."""
    if fields is None or fields[0] in "ZX":
        return None
    return Identity(pid, int(fields[19]), boot_id())


def is_alive(process: Identity | None) -> bool:
    return process is not None and identify(process.pid) == process


def cpu_and_memory(pid: int) -> tuple[float, int] | None:
    """Return (CPU seconds used so far, resident bytes) of a process, or None."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def environment_of(pid: int) -> bytes:
    """Return the `NAME=value` entries that a process was started with, a zero byte before and after each.

    It is empty if the process is gone or not readable.
    """
    data = read_of(pid, "environ")
    return b"" if data is None else b"\0%s\0" % data


def variable(environment: bytes, name: bytes) -> bytes | None:
    """Return the value of a variable in what `environment_of` returns."""
    _, found, rest = environment.partition(b"\0%s=" % name)
    return rest.partition(b"\0")[0] if found else None


def find_by_environment(wanted: Mapping[str, str]) -> list[Identity]:
    """Return every live process of this account whose environment has all of `wanted`, except this one and ancestors.

    If there is none, look again: a process that exited during the first look may have started another.
    """
    return find_by_environments([wanted])


def find_by_environments(wanted: Sequence[Mapping[str, str]]) -> list[Identity]:
    """Do the same for any of several environments."""
    return _find_by_environments(wanted) or _find_by_environments(wanted)


def _find_by_environments(wanted: Sequence[Mapping[str, str]]) -> list[Identity]:
    marks = [[f"\0{name}={value}\0".encode(errors="surrogateescape") for name, value in one.items()] for one in wanted]
    return list(own_environments(lambda its: any(all(mark in its for mark in one) for one in marks))) if marks else []


def own_environments(is_wanted: Callable[[bytes], bool]) -> dict[Identity, bytes]:
    """Return the wanted environments of this account's processes, except this process and its ancestors.

    It also looks at processes that start in the meantime. Otherwise a process that keeps starting its successor and
    exiting would never be seen. New ones that are clearly unwanted start no successor that is wanted: on a machine with
    many nodes there are always some.
    """
    matches: dict[Identity, bytes] = {}
    seen, unclear, quiet = _ancestors(), set[int](), 0
    for _ in range(ROUNDS):
        new = _own_pids(seen)
        seen.update(new)
        unwanted = [_is_unwanted(pid, is_wanted, matches, unclear) for pid in new]
        quiet = quiet + 1 if all(unwanted) else 0  # one may have started unseen, with a pid that was already passed
        if quiet == QUIET_ROUNDS:
            break
    for _ in range(LOOKS - 1):
        again, unclear = [pid for pid in unclear if _may_be_in_exec(pid)], set()
        if not again:
            break
        time.sleep(POLL_S)
        for pid in again:
            _is_unwanted(pid, is_wanted, matches, unclear)
    return matches


def _is_unwanted(
    pid: int, is_wanted: Callable[[bytes], bool], matches: dict[Identity, bytes], unclear: set[int]
) -> bool:
    """Return True if a process certainly has an environment that is not wanted.

    Add it to `matches` if the wanted environment is certainly its own, not that of another with its pid.
    """
    environment = environment_of(pid)
    if is_wanted(environment):
        process, environment = identify(pid), environment_of(pid)
        if process is not None and is_wanted(environment) and is_alive(process):
            matches[process] = environment
    if environment == NO_ENVIRONMENT:
        unclear.add(pid)
        return False
    return bool(environment) and not is_wanted(environment)


def own_processes() -> dict[Identity, list[str]]:
    """Return the fields of /proc/PID/stat of this account's live processes, except this process and its ancestors."""
    stats = {pid: stat_fields(pid) for pid in own_pids()}
    processes = ((named_by(pid, fields), fields) for pid, fields in stats.items())
    return {process: fields for process, fields in processes if process is not None and fields is not None}


def _may_be_in_exec(pid: int) -> bool:
    """Return True if a process without an environment may be within exec.

    During exec it has none. On a busy machine that takes a while; some processes never have one.
    """
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def own_pids() -> list[int]:
    """Return every process of this account, except this process and its ancestors."""
    return _own_pids(_ancestors())


def _own_pids(known: Collection[int]) -> list[int]:
    entries = (entry for entry in os.scandir(PROC) if entry.name.isdigit() and int(entry.name) not in known)
    return [int(entry.name) for entry in entries if _is_mine(entry)]


def _is_mine(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat().st_uid == os.getuid()
    except OSError:
        return False


def _ancestors() -> set[int]:
    chain: set[int] = set()
    pid = os.getpid()
    while pid and pid not in chain:
        chain.add(pid)
        fields = stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return chain


def send_signal(process: Identity, number: int) -> None:
    """Signal exactly this process, never another with its pid. A stopped process is continued to receive the signal."""
    handle = _open(process.pid)
    try:
        for each in (number, signal.SIGCONT) if is_alive(process) else ():
            if handle is None:
                os.kill(process.pid, each)
            else:
                signal.pidfd_send_signal(handle, each)
    except OSError:  # it has just exited, or changed its uid
        return
    finally:
        if handle is not None:
            os.close(handle)


def _open(pid: int) -> int | None:
    """Return a pidfd of the process that has the pid now; None if the kernel has no pidfds (< 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return True as soon as `condition` is true, False if it is not within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def end_all(find: Callable[[], list[Identity]], grace_s: float) -> tuple[int, int, int]:
    """Send TERM, then KILL after the grace, until `find` returns nothing. Return (found, killed by KILL, survivors)."""
    seen: set[Identity] = set()

    def none_left(number: int) -> bool:
        left = find()
        for process in left:
            if number == signal.SIGKILL or process not in seen:
                send_signal(process, number)
        seen.update(left)
        return not left

    if wait_until(lambda: none_left(signal.SIGTERM), grace_s):
        return len(seen), 0, 0
    stubborn = len(find())
    wait_until(lambda: none_left(signal.SIGKILL), 5.0)
    return len(seen), stubborn, len(find())


def run_environment(job_dir: Path, run: str | None = None) -> dict[str, str]:
    """Return the variables that every process of a run, or of any run of the job, has in its environment."""
    marks = {"CLUSTERCTL_JOB_DIR": str(job_dir)}
    if run is not None:
        marks["CLUSTERCTL_RUN"] = run
    return marks


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants. Return False if the system does not support it."""
    import ctypes  # noqa: PLC0415 - an incomplete Python lacks it

    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
