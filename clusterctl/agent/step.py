"""A step that stays: where the end of a step ends what it has started, it lasts as long as the run."""

from __future__ import annotations

import contextlib
import os
import signal

from clusterctl.common.procfs import adopt_orphans


def hold(supervisor: int | None) -> None:
    """Return once no process is left that this one or its descendants have started.

    On TERM, by which the scheduler announces the end of its patience, the run of the supervisor with that pid stops.
    """

    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # a handler misses one that comes just before a wait
    adopt_orphans()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # they lead to a control machine that does not listen any more
        os.dup2(nowhere, stream)
    has_ended = False
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, _ = os.waitpid(-1, os.WNOHANG)
            has_ended |= ended == supervisor
            if not ended and signal.sigwait(signals) == signal.SIGTERM and supervisor is not None and not has_ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGTERM)
