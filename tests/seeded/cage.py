"""Run a command for a limited time, and leave no process of it: `cage.py SECONDS COMMAND...`.

Supervisors and servers leave the session and the parent they were started in. This process adopts every orphan below
it, so that what is left at the end are its children, whatever they call themselves. Exit 124 if the time was over.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TIME_OVER = 124


def main(seconds: float, command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        process = subprocess.Popen(command, start_new_session=True)
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return TIME_OVER
    finally:
        while _kill_children():
            pass


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(TIME_OVER)


def _kill_children() -> bool:
    """Kill and reap everything below this process; the children of what was killed are ours next. False if none is."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for pid in map(int, children):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return bool(children)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
