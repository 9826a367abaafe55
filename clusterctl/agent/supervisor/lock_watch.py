"""Ends a supervisor whose job another machine has taken over. See `operations.takeover`."""

from __future__ import annotations

import contextlib
import os
import signal

from clusterctl.agent.supervisor.run_context import EventRecorder
from clusterctl.common.files import mark
from clusterctl.common.paths import RunPaths

MOST_BYTES = 1000


class LockWatch:
    """The lock of the job of `run`, held by `fd`.

    A new life of the job writes another name into it, or puts another in its place.
    """

    def __init__(self, run: RunPaths, fd: int, record: EventRecorder) -> None:
        self._run = run
        self._job = run.job
        self._fd = fd
        self._record = record
        self._is_over = False
        self._ours = b""
        with contextlib.suppress(OSError):
            self._ours = os.pread(fd, MOST_BYTES, 0)

    def look(self) -> None:
        """Stop the run here if the lock is no longer ours."""
        if self._is_over or not self._ours or not self._is_taken():
            return
        self._is_over = True
        message = "another machine has taken this job over; ending its processes here"
        self._record({"event": "log", "level": "error", "message": message})
        with contextlib.suppress(OSError):
            mark(self._run.stop_asked)  # the signal does not come from outside
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_taken(self) -> bool:
        with contextlib.suppress(OSError):  # a file that is gone from a server is stale
            if os.fstat(self._fd).st_nlink:
                return os.pread(self._fd, MOST_BYTES, 0) != self._ours
        return self._job.lock.exists()
