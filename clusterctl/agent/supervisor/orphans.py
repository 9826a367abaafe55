"""Ends the leftover processes of a run on a node, found by their environment or by descent."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from typing import Callable

from clusterctl.agent.node.job_processes import descendants
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.events import LogEvent
from clusterctl.common.procfs import Identity, find_by_environments, run_environment, send_signal

POLL_S = 0.05
LIMIT_S = 10.0  # after KILL
Done = Callable[[], None]


class OrphanCleaner:
    """Sends TERM to all leftover processes, including new ones, and KILL to those that outlive the grace.

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
        """Call `then` when no leftover process remains, of these processes or of the whole run."""
        find = self._whole if of is None else lambda: self._of(of)
        self._look(find, set(), self._context.loop.now() + self._context.spec.timing.grace_s, then)

    def _whole(self) -> list[Identity]:
        """The run's processes, and descendants that cleared their environment: by then, all below us are leftovers."""
        return list({*find_by_environments([self._run]), *descendants(self._spared)})

    def _of(self, children: Sequence[Child]) -> list[Identity]:
        """Processes of these children, including those that cleared their environment and stayed in the session."""
        sessions = {child.identity.pid for child in children if child.identity}
        below = [process for process, session in descendants(self._spared).items() if session in sessions]
        return list({*find_by_environments([{**self._run, **_marks(child)} for child in children]), *below})

    def _look(self, find: Callable[[], list[Identity]], signalled: set[Identity], kill_at: float, then: Done) -> None:
        left = find()
        late = self._context.loop.now() - kill_at
        if left and not signalled:
            self._record({"event": "log", "message": "ending leftover processes"}, left)
        for process in left:
            if late > 0:
                self._kill(process)
            elif process not in signalled:
                send_signal(process, signal.SIGTERM)
        if late > LIMIT_S and left:  # stuck in the kernel; `stop` counts it
            self._record({"event": "log", "level": "error", "message": "processes survive KILL"}, left)
        if not left or late > LIMIT_S:
            then()
        else:
            self._context.loop.after(POLL_S, lambda: self._look(find, signalled | set(left), kill_at, then))

    def _record(self, event: LogEvent, left: list[Identity]) -> None:
        event["pids"] = [process.pid for process in left]
        self._context.record(event)

    def _kill(self, process: Identity) -> None:
        if process not in self._killed:
            self._killed.add(process)
            self._count_killed()
        send_signal(process, signal.SIGKILL)


def _marks(child: Child) -> dict[str, str]:
    return {
        "CLUSTERCTL_ROLE": child.role,
        "CLUSTERCTL_RANK": str(child.rank),
        "CLUSTERCTL_ATTEMPT": str(child.attempt),
    }


def reap_orphans(ours: Collection[int]) -> None:
    """Reap adopted orphans. `ours` are the pids of children that are reaped elsewhere."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in ours:  # one of these has just ended: we will be called again
            return
        os.waitpid(ended.si_pid, os.WNOHANG)
