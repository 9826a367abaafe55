"""Code that waits: threads of simulated processes. One runs at a time, until it waits for simulated time to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.machine import Process


class Killed(BaseException):
    """Raised in a thread that is not to go on."""


class Blocking:
    """A thread of `process` that does `work`. An exception of it is raised in the simulation."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self._world = process.machine.world
        self._work = work
        self._turn, self._pause = threading.Lock(), threading.Lock()  # each released by the other side
        self._turn.acquire()
        self._pause.acquire()
        self._turns = 0
        self._over = self._killed = False
        self._error: BaseException | None = None
        self._world.threads.append(self)
        threading.Thread(target=self._run, daemon=True).start()
        process.call(lambda: self._resume(0))

    def wait(self, begin: Callable[[Callable[[], None]], Any]) -> None:
        """Call `begin` with a function that lets this thread go on, and wait for that. Only the first call counts."""
        turn = self._turns
        begin(lambda: self.process.call(lambda: self._resume(turn)))
        self._give_back()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda wake: self.process.after(seconds, wake))

    def kill(self) -> None:
        """End it. Whatever it waits for in its last words does not come."""
        self._killed = True
        if not self._over:
            self._take_turn()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._killed:
                self._work()
        except Killed:
            pass
        except BaseException as exc:  # noqa: BLE001 - it is raised where the simulation waits
            self._error = exc
        self._over = True
        self._pause.release()

    def _resume(self, turn: int) -> None:
        if turn != self._turns or self._over or self._killed:
            return
        before, self._world.thread = self._world.thread, self
        try:
            self._take_turn()
        finally:
            self._world.thread = before
        if self._error is not None:
            raise self._error

    def _take_turn(self) -> None:
        self._turns += 1
        self._turn.release()
        self._pause.acquire()

    def _give_back(self) -> None:
        if self._killed:
            raise Killed
        self._pause.release()
        self._turn.acquire()
        if self._killed:
            raise Killed
