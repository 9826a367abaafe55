"""A supervisor's guardian, and the lease that it holds if processes move when their node is lost."""

from __future__ import annotations

import contextlib
import os

from clusterctl.agent.lead.lease import GOODBYE, SHARE, Lease
from clusterctl.agent.supervisor import guardian
from clusterctl.common.paths import RunPaths
from clusterctl.common.run_spec import RunSpec


class Fence:
    """`lock_fd` holds the lock of the job directory, which the guardian holds, too."""

    def __init__(self, run: RunPaths, spec: RunSpec, lock_fd: int) -> None:
        self._run = run
        self._grace_s = spec.timing.grace_s
        self._lock_fd = lock_fd
        self.leased = spec.failures.node_loss == "move"
        self._spawn()
        self._lease = Lease(SHARE * spec.timing.node_grace_s, self._lifeline) if self.leased else None

    def _spawn(self) -> None:
        job_dir, run = self._run.job.dir, self._run.run
        self._guardian, self._lifeline = guardian.spawn(job_dir, run, self._grace_s, self._lock_fd, leased=self.leased)

    @property
    def pid(self) -> int:
        """The guardian's."""
        return self._guardian.pid

    @property
    def is_open(self) -> bool:
        """True if processes may start: the lead has answered, and the guardian would not kill them."""
        return self._lease is None or not self._lease.expired

    @property
    def was_closed(self) -> bool:
        """True if a process that has just been killed may have been killed by the guardian."""
        return self._lease is not None and self._lease.was_expired

    def answered(self, sent: float) -> None:
        """Handle the lead's answer to what was sent at this time since boot."""
        if self._lease is not None:
            self._lease.extend(sent)

    def replace_dead(self) -> None:
        """Start another guardian if this one is dead."""
        if self._guardian.poll() is None:
            return
        os.close(self._lifeline)
        self._spawn()
        if self._lease is not None:
            self._lease.hand_over(self._lifeline)

    def let_go(self) -> None:
        """Let the guardian exit: nothing is left to be ended."""
        with contextlib.suppress(OSError):  # it may just have been killed
            os.write(self._lifeline, GOODBYE + b"\n")
