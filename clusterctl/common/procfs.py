"""Processes of this node: who they are beyond a number, and how they are ended.

A pid alone names nobody: it is used again. A process is named by (pid, start ticks, boot id), and what belongs to a
run is found by this account's uid and by the environment that every process of a run carries.
"""

from __future__ import annotations

import os
import time

from clusterctl.common.fastjson import LightPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

PROC = LightPath("/proc")
POLL_S = 0.02
LOOKS = 4  # at a process without environment
ROUNDS, QUIET_ROUNDS = 20, 2  # at those that have begun since the round before
NO_ENVIRONMENT = {b""}
KERNEL_THREAD = 0x00200000  # PF_KTHREAD among the flags of /proc/PID/stat
_boot: list[str] = []
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
    """Of this boot; read once, since it cannot change under us."""
    if not _boot:
        _boot.append((PROC / "sys/kernel/random/boot_id").read_text().strip())
    return _boot[0]


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, or None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the command's name may hold spaces and brackets


def identify(pid: int) -> Identity | None:
    """Who `pid` is now; None for nobody, and for a zombie, which runs no more."""
    return named_by(pid, stat_fields(pid))


def named_by(pid: int, fields: list[str] | None) -> Identity | None:
    """Who it is whose /proc/PID/stat holds `fields`."""
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
    return list(own_environments(lambda its: any(entries <= its for entries in marks))) if marks else []


def own_environments(is_wanted: Callable[[set[bytes]], bool]) -> dict[Identity, set[bytes]]:
    """What processes of this account, but us and our ancestors, were started with, of those where it is wanted.

    Looks also at those that begin meanwhile: of a process that starts another and ends at once, again and again, none
    would ever be seen.
    """
    found: dict[Identity, set[bytes]] = {}
    seen, unclear, quiet = set[int](), set[int](), 0
    for _ in range(ROUNDS):
        new = own_pids(seen)
        seen.update(new)
        for pid in new:
            _take(pid, is_wanted, found, unclear)
        quiet = 0 if new else quiet + 1  # one may have begun behind our back as another ended before it
        if quiet == QUIET_ROUNDS:
            break
    for _ in range(LOOKS - 1):
        again, unclear = [pid for pid in unclear if _may_be_in_exec(pid)], set()
        if not again:
            break
        time.sleep(POLL_S)
        for pid in again:
            _take(pid, is_wanted, found, unclear)
    return found


def _take(
    pid: int, is_wanted: Callable[[set[bytes]], bool], found: dict[Identity, set[bytes]], unclear: set[int]
) -> None:
    """Of what is wanted only what is surely that process's, and not another's, which had or got its number."""
    environment = environment_of(pid)
    if is_wanted(environment):
        who, environment = identify(pid), environment_of(pid)
        if who is not None and is_wanted(environment) and is_alive(who):
            found[who] = environment
    if environment == NO_ENVIRONMENT:
        unclear.add(pid)


def own_processes() -> dict[Identity, list[str]]:
    """The fields of /proc/PID/stat of every live process of this account, but us and our ancestors."""
    found = ((pid, stat_fields(pid)) for pid in own_pids())
    return {who: fields for pid, fields in found if fields is not None and (who := named_by(pid, fields)) is not None}


def _may_be_in_exec(pid: int) -> bool:
    """Whether it is a program, though none with an environment: it may be about to become another one.

    Between the two it has none. On a busy machine that lasts; some have none for good.
    """
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def own_pids(known: Collection[int] = ()) -> list[int]:
    """Every process of this account, but us, our ancestors and the `known`."""
    others = {*known, *_ancestors()}
    entries = (entry for entry in os.scandir(PROC) if entry.name.isdigit() and int(entry.name) not in others)
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


def send_signal(who: Identity, number: int) -> None:
    """Signals this very process, never another that got its number; one that is stopped is woken to hear it."""
    import signal

    handle = _open(who.pid)
    try:
        for each in (number, signal.SIGCONT) if is_alive(who) else ():
            if handle is None:
                os.kill(who.pid, each)
            else:
                signal.pidfd_send_signal(handle, each)
    except OSError:  # it has just ended, or changed its account
        return
    finally:
        if handle is not None:
            os.close(handle)


def _open(pid: int) -> int | None:
    """A descriptor of whoever has the number now, and of nobody after that; None where the kernel has none (< 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


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
