"""What the processes of a run leave behind on a node: found by their environment or by descent, and ended."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Sequence
from typing import Callable

from clusterctl.agent.node.job_processes import descendants
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.procfs import Identity, find_by_environments, run_environment, send_signal

POLL_S = 0.05
LIMIT_S = 10.0  # after KILL
Done = Callable[[], None]
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class OrphanCleaner:
    """TERM to all there are, also to those that come yet, KILL to those that outlive the grace.

    `count_killed` is called for each that needs KILL.
    """

    def __init__(
        self,
        context: RunContext,
        count_killed: Callable[[], None],
        spared: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        self._context = context
        self._run = run_environment(context.run.job.dir, context.run.run)
        self._count_killed = count_killed
        self._spared = spared
        self._killed: set[Identity] = set()

    def clear(self, then: Done, of: Sequence[Child] | None = None) -> None:
        """Calls `then` when nothing is left that could be ended: of these processes, or of the whole run."""
        find = self._whole if of is None else lambda: self._of(of)
        self._look(find, set(), self._context.loop.now() + self._context.spec.timing.grace_s, then)

    def _whole(self) -> list[Identity]:
        """Also descendants that cleared their environment; all others below us have ended by then."""
        return list({*find_by_environments([self._run]), *descendants(self._spared)})

    def _of(self, children: Sequence[Child]) -> list[Identity]:
        """Also what cleared its environment and stayed in the session."""
        sessions = {child.identity.pid for child in children if child.identity}
        below = [who for who, session in descendants(self._spared).items() if session in sessions]
        return list({*find_by_environments([{**self._run, **_marks(child)} for child in children]), *below})

    def _look(self, find: Callable[[], list[Identity]], told: set[Identity], kill_at: float, then: Done) -> None:
        left = find()
        late = self._context.loop.now() - kill_at
        if left and not told:
            self._record("ending processes left behind", left)
        for who in left:
            if late > 0:
                self._kill(who)
            elif who not in told:
                send_signal(who, signal.SIGTERM)
        if late > LIMIT_S and left:  # stuck in the kernel; `stop` counts it
            self._record("processes survive KILL", left, level="error")
        if not left or late > LIMIT_S:
            then()
        else:
            self._context.loop.after(POLL_S, lambda: self._look(find, told | set(left), kill_at, then))

    def _record(self, message: str, left: list[Identity], **more: str) -> None:
        self._context.record({"event": "log", **more, "message": message, "pids": [who.pid for who in left]})

    def _kill(self, who: Identity) -> None:
        if who not in self._killed:
            self._killed.add(who)
            self._count_killed()
        send_signal(who, signal.SIGKILL)


def _marks(child: Child) -> dict[str, str]:
    return {
        "CLUSTERCTL_ROLE": child.role,
        "CLUSTERCTL_RANK": str(child.rank),
        "CLUSTERCTL_ATTEMPT": str(child.attempt),
    }


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
