"""Processes of this node: who they are beyond a number, and how they are ended.

A pid alone names nobody: it is used again. A process is named by (pid, start ticks, boot id), and what belongs to a
run is found by this account's uid and by the environment that every process of a run carries.
"""

from __future__ import annotations

import os
import time

from clusterctl.agent.light import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PROC = Place("/proc")
POLL_S = 0.02
LOOKS = 4  # at a process without environment
NO_ENVIRONMENT = {b""}
KERNEL_THREAD = 0x00200000  # PF_KTHREAD among the flags of /proc/PID/stat
LIVE_STATES = ("starting", "ready", "running", "stalled")  # of a process of a run


class Identity(tuple):  # type: ignore[type-arg]  # python 3.9 has no generic base here
    """One process, for good: `ticks` is its start time in clock ticks since boot. A named tuple, made without one."""

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
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, or None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the command's name may hold spaces and brackets


def identify(pid: int) -> Identity | None:
    """Who `pid` is now; None for nobody, and for a zombie, which runs no more."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Identity(pid, int(fields[19]), boot_id())


def is_alive(who: Identity | None) -> bool:
    return who is not None and identify(who.pid) == who


def cpu_and_memory(pid: int) -> tuple[float, int] | None:
    """(CPU seconds used so far, resident bytes) of a process, or None."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def environment_of(pid: int) -> set[bytes]:
    """The `NAME=value` entries that a process was started with; empty if it is gone or not ours to see."""
    try:
        return set((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def find_by_environment(wanted: Mapping[str, str]) -> list[Identity]:
    """Every live process of this account whose environment holds all of `wanted`, but us and our ancestors.

    Where there seems to be none a second look tells: one that ended under the first may have started another meanwhile.
    """
    return find_by_environments([wanted])


def find_by_environments(wanted: Sequence[Mapping[str, str]]) -> list[Identity]:
    """The same, for any of several environments."""
    return _find_by_environments(wanted) or _find_by_environments(wanted)


def _find_by_environments(wanted: Sequence[Mapping[str, str]]) -> list[Identity]:
    marks = [{f"{name}={value}".encode(errors="surrogateescape") for name, value in one.items()} for one in wanted]
    environments = own_environments() if marks else {}
    found = [identify(pid) for pid, its in environments.items() if any(entries <= its for entries in marks)]
    return [who for who in found if who is not None]


def own_environments() -> dict[int, set[bytes]]:
    """What every process of this account, but us and our ancestors, was started with."""
    environments = {pid: environment_of(pid) for pid in own_pids()}
    for _ in range(LOOKS - 1):
        unclear = [pid for pid, found in environments.items() if found == NO_ENVIRONMENT and _may_be_in_exec(pid)]
        if not unclear:
            break
        time.sleep(POLL_S)
        environments.update({pid: environment_of(pid) for pid in unclear})
    return environments


def _may_be_in_exec(pid: int) -> bool:
    """Whether it is a program, though none with an environment: it may be about to become another one.

    Between the two it has none. On a busy machine that lasts; some have none for good.
    """
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def own_pids() -> list[int]:
    """Every process of this account, but us and our ancestors."""
    ours = _ancestors()
    pids = [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit() and _is_mine(entry)]
    return [pid for pid in pids if pid not in ours]


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


def send_signal(who: Identity, number: int) -> None:
    """Signals this very process, never another that got its number; one that is stopped is woken to hear it."""
    import signal

    if is_alive(who):
        try:
            os.kill(who.pid, number)
            os.kill(who.pid, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            return


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether `condition` came true within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def end_all(find: Callable[[], list[Identity]], grace_s: float) -> tuple[int, int, int]:
    """TERM, a grace, then KILL until `find` finds nothing: (found, killed by KILL, survivors)."""
    import signal

    seen: set[Identity] = set()

    def none_left(number: int) -> bool:
        left = find()
        for who in left:
            if number == signal.SIGKILL or who not in seen:
                send_signal(who, number)
        seen.update(left)
        return not left

    if wait_until(lambda: none_left(signal.SIGTERM), grace_s):
        return len(seen), 0, 0
    stubborn = len(find())
    wait_until(lambda: none_left(signal.SIGKILL), 5.0)
    return len(seen), stubborn, len(find())


def run_environment(job_dir: Path, run: str | None = None) -> dict[str, str]:
    """The variables by which every process of a run, or of any run of the job, is found."""
    marks = {"CLUSTERCTL_JOB_DIR": str(job_dir)}
    if run is not None:
        marks["CLUSTERCTL_RUN"] = run
    return marks
