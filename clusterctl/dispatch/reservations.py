"""Reservations of jobs: what one program has dispatched in order to start it, another neither uses nor replaces.

The next dispatch of a workspace uses its job again if that was never started. If a program that is still there
dispatched it, the two would start one job. A reservation is a locked file in the cache: all programs of this account on
this machine see it, and it ends with its program, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from clusterctl.common.files import is_locked
from clusterctl.common.paths import is_job_id
from clusterctl.common.procfs import wait_until

LOCK_S = 0.5  # a program that only tests a lock holds it for an instant


class Reservations:
    """The jobs that this program has dispatched. Thread-safe; `close` ends all reservations, and so does its end."""

    def __init__(self, cache: Path | None) -> None:
        """Where `cache` cannot be written, reservations are known to this object alone."""
        self._directory = (cache or Path(os.devnull)) / "reserved"
        self._lock = threading.Lock()
        self._held: dict[str, int | None] = {}  # the descriptor of the locked file

    def allow(self, job: str, *, own: bool) -> bool:
        """Return True if nobody has reserved a job; or only this object, if its `own` are to be used again."""
        with self._lock:
            if job in self._held:
                return own
        return not (is_job_id(job) and self._directory.is_dir() and is_locked(self._directory / job))

    def make(self, job: str, *, own: bool) -> bool:
        """Reserve a job; return False if it is not allowed."""
        with self._lock:
            if job in self._held or not is_job_id(job):  # nodes name jobs
                return own or job not in self._held
            try:
                self._held[job] = _locked(self._directory / job)
            except BlockingIOError:
                return False
            except OSError:
                self._held[job] = None
            with contextlib.suppress(OSError):
                self._remove_left()
        return True

    def _remove_left(self) -> None:
        """Remove the files of programs that were killed."""
        for path in self._directory.iterdir():
            if path.name not in self._held and not is_locked(path):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            for job, fd in self._held.items():
                if fd is not None:
                    with contextlib.suppress(OSError):
                        (self._directory / job).unlink(missing_ok=True)
                    os.close(fd)
            self._held.clear()


def _locked(path: Path) -> int:
    """Create a file and lock it. Raises BlockingIOError if another program has locked it."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not wait_until(lambda fd=fd: _try_lock(fd), LOCK_S):  # type: ignore[misc]
                raise BlockingIOError
            if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:  # it may have been removed meanwhile
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
