"""A supervisor is the parent of its processes' orphans: whoever loses its own, by a double fork too, falls to it.

So what a process of the run leaves behind can be found by descent while the supervisor lives, and its zombies go.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def adopt_orphans() -> bool:
    """From now on; whether this system knows of such a thing (Linux since 3.4)."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def reap_orphans(ours: Collection[int]) -> None:
    """Takes the ends of those that fell to us. `ours` are the pids of children that somebody else waits for."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in ours:  # one of these has ended just now: we shall be called again
            return
        os.waitpid(ended.si_pid, os.WNOHANG)
