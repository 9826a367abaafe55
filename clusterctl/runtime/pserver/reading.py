"""Reads files for a lane in a thread: meanwhile the lane answers that it is busy, however slow the disk is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Callable

import numpy as np

_SLICE_S = 0.05  # in which the lane answers nothing


class ReadJob:
    """A job that reads files. `slices` does it; after that, `result` raises its error if it had one."""

    def __init__(self, job: Callable[[], object]) -> None:
        self._job = job
        self._future: Future[object] = Future()
        self._clock: int | None = None

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> None:
        self._future.result()

    def slices(self) -> Iterator[None]:
        """Do the job in a thread. Each slice is a short wait for it."""
        threading.Thread(target=self._run, name="clusterctl-reading", daemon=True).start()
        while wait([self._future], _SLICE_S).not_done:
            yield

    def progress(self) -> int:
        """Return the nanoseconds that the thread has computed, which stand still while its disk does. Thread-safe."""
        try:
            return 0 if self._clock is None else time.clock_gettime_ns(self._clock)
        except OSError:  # it has ended
            return 0

    def _run(self) -> None:
        try:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            with np.errstate(all="ignore"):  # like the lane
                self._future.set_result(self._job())
        except BaseException as failure:  # noqa: BLE001 - the lane raises it
            self._future.set_exception(failure)
