"""The three locks of a node: dispatch, job, environments."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.agent.node.jobs import pick_run, read_state, supervisor_of
from clusterctl.common.errors import AgentError
from clusterctl.common.files import is_locked, read_json
from clusterctl.common.paths import META, JobPaths, incoming_dir
from clusterctl.common.procfs import Identity, boot_id, identify, is_alive, wait_until
from clusterctl.common.safe_json import dumps, loads

LOCK = "dispatch.lock"
LOCK_TRIES = 20
HOLDER_BYTES = 200
LOCK_S = 0.5  # a process that only tests the lock holds it for an instant


class LockHolder(NamedTuple):
    """The process that took a job's lock last, and its host."""

    pid: int
    ticks: int
    boot: str
    host: str

    @property
    def is_elsewhere(self) -> bool:
        """True if its machine may be another one. A pod that has moved keeps its host name, but sees another boot.

        So does a machine that was restarted. Nothing is left there, and its silence is noticed within seconds.
        """
        return self.boot != boot_id() or self.host != host_name()


def host_name() -> str:
    return os.uname().nodename


def starter_of(job: JobPaths) -> LockHolder | None:
    """Return the process that took the lock last, None if it is not known."""
    written = read_json(job.lock)
    try:
        return LockHolder(int(written["pid"]), int(written["ticks"]), str(written["boot"]), str(written["host"]))
    except (KeyError, TypeError, ValueError):
        return None


class JobLock:
    """The job's lock, held by one live run. Raises AgentError if another process holds it.

    On a shared disk it may not reach other machines, so it names its host and its boot: see `operations.takeover`.
    """

    def __init__(self, job: JobPaths) -> None:
        self._job = job

    def __enter__(self) -> int:
        self._fd = os.open(self._job.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if wait_until(lambda: _try_lock(self._fd), LOCK_S):
            os.ftruncate(self._fd, 0)
            me = identify(os.getpid())
            assert me is not None
            os.pwrite(self._fd, dumps({**me.to_json(), "host": host_name()}), 0)
        else:
            os.close(self._fd)
            raise _held(self._job)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)  # the supervisor holds the lock by its own descriptor


def _held(job: JobPaths) -> AgentError:
    """Return the error for a job whose lock another process holds: a run, a start, or a guardian after a run."""
    name, run, starter = job.dir.name, pick_run(job), starter_of(job)
    if starter is not None and starter.is_elsewhere:
        hint = "stop it from there; a start --resume waits for what is left of a run that has lost its lead"
        return AgentError(f"{name} is in use on {starter.host}", kind="refused", hint=hint, locked=True)
    state = read_state(run) if run else {"ended": True}
    if run and not state.get("ended") and is_alive(supervisor_of(state)):
        hint = f"to stop it: clusterctl stop {name}; or dispatch again to create a new job"
        return AgentError(f"{name} is already running (run {int(run.run)})", kind="refused", hint=hint, locked=True)
    if starter is not None and is_alive(Identity(*starter[:3])):
        hint = f"clusterctl status {name} shows what becomes of it"
        return AgentError(f"another clusterctl start of {name} is under way", kind="refused", hint=hint, locked=True)
    hint = f"try again in a moment; clusterctl stop {name} ends what is left at once"
    return AgentError(f"an earlier run of {name} is still being ended here", kind="refused", hint=hint, locked=True)


class DispatchLock:
    """Hold the lock on adding and removing jobs. Its file names the holder; the lock is released when the holder exits.

    Raises AgentError of kind `busy`, with the holder in its details, if another process holds it. The file appears with
    its lock taken and its holder written, because it is linked into place.
    """

    def __init__(self, root: Path, holder: dict[str, Any]) -> None:
        self._incoming = incoming_dir(root)
        self._holder = holder

    def __enter__(self) -> None:
        self._incoming.mkdir(0o700, parents=True, exist_ok=True)
        beside = self._incoming.parent / f".{LOCK}.{os.getpid()}"
        self._path = self._incoming.parent / LOCK
        self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, dumps({**self._holder, "since": time.time()}))
            try:
                _link(beside, self._path)
            finally:
                beside.unlink()
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._path.unlink()
        finally:
            os.close(self._fd)


def is_dispatching(root: Path) -> bool:
    """Return True if a process holds the dispatch lock now."""
    return is_locked(incoming_dir(root).parent / LOCK)


def _link(beside: Path, path: Path) -> None:
    for _ in range(LOCK_TRIES):
        try:
            os.link(beside, path)
            return
        except FileExistsError:
            _remove_dead(path)
    raise AgentError("cannot take the dispatch lock", hint=f"is another program changing {path}?")


def _remove_dead(path: Path) -> None:
    """Remove the lock of a holder that is gone. Raises AgentError if it is alive."""
    try:
        other = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS requires write access for an exclusive lock
    except FileNotFoundError:
        return
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(other), path.stat()):
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as exc:
        if exc.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        holder = read_json(path) or {}
        by = holder.get("by", "unknown")
        raise AgentError(
            f"another dispatch is running on this node (by {by})",
            kind="busy",
            hint="dispatch again when it has finished",
            holder=holder,
        ) from exc
    finally:
        os.close(other)


class Holder(NamedTuple):
    """The process that holds a lock: its operation ("setup", "prune") and its pid, as far as they are known."""

    operation: str
    pid: int | None


def _try_lock(fd: int) -> bool:
    """Lock the open file unless another process holds its lock. Return True if it is ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def holder_of(written: bytes) -> Holder:
    """Return the holder that a lock file names."""
    try:
        holder = loads(written)
        return Holder(str(holder["operation"]), int(holder["pid"]))
    except (ValueError, KeyError, TypeError):
        return Holder("process", None)


class EnvironmentsLock:
    """Hold the lock on adding and removing environments and wheels of this node. It is released when its holder exits.

    Yields None, or the lock's holder if the lock was not free within `limit_s`.
    """

    def __init__(self, root: Path, operation: str, limit_s: float) -> None:
        self._directory = root / META / "venvs"
        self._operation = operation
        self._limit_s = limit_s

    def __enter__(self) -> Holder | None:
        self._directory.mkdir(0o700, exist_ok=True)
        self._fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not wait_until(lambda: _try_lock(self._fd), self._limit_s):
                return holder_of(os.pread(self._fd, HOLDER_BYTES, 0))
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, dumps({"operation": self._operation, "pid": os.getpid()}), 0)
        except BaseException:
            os.close(self._fd)
            raise
        return None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
