"""How much CPU a process uses: for `status`, and for the `usage` events of a run."""

from __future__ import annotations


class CpuMeter:
    """The average use of the CPU over periods of at least `period_s`. `cores`, of the last period, is None before."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._began: tuple[float, float] | None = None  # time, and CPU seconds used until then
        self.cores: float | None = None

    def read(self, used_s: float, now: float) -> bool:
        """Take the CPU seconds used since the start of the process. Return True if a period ends; the first begins one.

        `now` is monotonic.
        """
        if self._began is None:
            self._began = (now, used_s)
            return False
        began, before_s = self._began
        if now - began < self._period_s:
            return False
        self.cores = (used_s - before_s) / (now - began)
        self._began = (now, used_s)
        return True
