"""Ends a program whose main module multiprocessing imports again, because it lacks `if __name__ == "__main__":`.

With the start methods spawn and forkserver, every new process imports the main module under the name `__mp_main__`. If
that calls `connect()`, the process cannot become what it was started for, and a pool would replace it for ever. So the
process that called `connect()` first is signalled, and raises MainGuardError, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from clusterctl.common.procfs import PROC, stat_fields
from clusterctl.runtime.environment import announce_connection, connected_pid
from clusterctl.runtime.errors import MainGuardError, ProcessError

SIGNAL = int(signal.SIGRTMIN) + 5 if hasattr(signal, "SIGRTMIN") else 0
GRACE_S = 10.0  # for the exception to end the program
IMPORTED = "__mp_main__"  # the main module in a process of multiprocessing
WORDS = (
    "multiprocessing imported the program again in a new process (spawn or forkserver), which called connect() there"
)
REMEDY = """start the program's work only where it is the main program:

    if __name__ == "__main__":
        main()      # with connect(), loaders and pools in it
"""
NOT_HERE = "connect() was called in a process that multiprocessing started (spawn or forkserver)"
_raised_at: list[float] = []


def check(*, local: bool) -> None:
    """Raise MainGuardError, also in the process that has connected, if multiprocessing is importing the main module.

    In a run, raise ProcessError anywhere else in a process that it started: that one has no socket to the supervisor.
    """
    stacks = (None, sys._current_frames().get(threading.main_thread().ident or 0))  # which imports it
    frames = [frame for start in stacks for frame, _ in traceback.walk_stack(start)]
    of_main = [frame for frame in frames if frame.f_globals.get("__name__") == IMPORTED]
    if any(frame.f_code.co_name == "<module>" for frame in of_main):
        _end_program()
        raise MainGuardError(WORDS, remedy=REMEDY)
    if of_main and not local:
        raise ProcessError(NOT_HERE, remedy="call connect() in the training program itself, not in its processes")


def watch_children() -> None:
    """Let child processes end this one, see `check`. In a thread other than the main one they kill it."""
    announce_connection(os.getpid())
    is_main = threading.current_thread() is threading.main_thread()
    if SIGNAL and is_main and signal.getsignal(SIGNAL) is signal.SIG_DFL:
        signal.signal(SIGNAL, _on_child)


def _on_child(number: int, frame: object) -> None:
    """Raise the error; if the program goes on nevertheless, end it."""
    now = time.monotonic()
    if not _raised_at:
        _raised_at.append(now)
        raise MainGuardError(WORDS, remedy=REMEDY)
    if now - _raised_at[0] > GRACE_S:
        _exit()


def _exit() -> NoReturn:
    _say()
    os._exit(1)


def _say() -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{MainGuardError.__module__}.MainGuardError: {WORDS}; {REMEDY}".encode())


def _end_program() -> None:
    """Signal the process that has connected, if this one descends from it."""
    pid = connected_pid()
    if pid is None or not _descends_from(pid):
        return
    number = SIGNAL if _catches(pid) else signal.SIGKILL
    if number == signal.SIGKILL:
        _say()  # the killed process cannot, and this one may be ended together with it
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descends_from(pid: int) -> bool:
    parent = os.getppid()
    while parent > 1 and parent != pid:
        fields = stat_fields(parent)
        parent = int(fields[1]) if fields else 0
    return parent == pid


def _catches(pid: int) -> bool:
    """Return True if a process handles the signal."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(SIGNAL and caught >> (SIGNAL - 1) & 1)
