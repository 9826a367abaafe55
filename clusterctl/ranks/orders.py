"""Signals that end a rank. The end of the process that started it counts as TERM: mpirun may have been killed."""

from __future__ import annotations

import os
import select
import signal

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Orders:
    """The orders to end that this process gets from now on. It is made once, in the main thread."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._number = 0
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in NUMBERS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._number = self._number or number

    @property
    def number(self) -> int:
        """The first signal that arrived; 0 if none has."""
        if not self._number and os.getppid() != self._parent:
            self._number = signal.SIGTERM
        return self._number

    def pause(self, seconds: float) -> None:
        """Sleep, but not past a signal."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 512)

    @staticmethod
    def forget() -> None:
        """Give signals their usual meaning again, in a child."""
        signal.set_wakeup_fd(-1)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)
