"""This node's part of the run, as its supervisor writes it down."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.common.files import is_locked, mark, read_json
from clusterctl.common.paths import JobPaths, log_stem
from clusterctl.common.procfs import Identity, is_alive, send_signal

FIRST_RUN = "0001"  # and the only one: each mpirun makes a job of its own
SUCCEEDED = "succeeded"
FAILED_CODE = 1  # of a rank whose trainer is not why the run failed, or was not started
BY_SIGNAL = 128


class NodeRun:
    """The run of the job directory of one node."""

    def __init__(self, job_dir: Path) -> None:
        self._job = JobPaths(job_dir)
        self._run = self._job.run(FIRST_RUN)

    def log_of_trainer(self, index: int) -> Path:
        return self._job.log / f"{log_stem('trainer', index)}.log"

    def state(self) -> dict[str, Any] | None:
        """Return what the supervisor wrote last; None while there is none."""
        state = read_json(self._run.state)
        return state if isinstance(state, dict) else None

    def ended(self) -> dict[str, Any] | None:
        """Return the last state, once the run has ended."""
        state = self.state()
        return state if state and state.get("ended") else None

    def supervisor(self) -> Identity | None:
        state = self.state()
        return Identity(*state["supervisor"]) if state and state.get("supervisor") else None

    def is_lost(self) -> bool:
        """Return True if the supervisor was killed, and nothing of the run is left here."""
        supervisor = self.supervisor()
        return supervisor is not None and not is_alive(supervisor) and not self.ended() and self.is_free()

    def is_free(self) -> bool:
        """Return True if no start, supervisor or guardian is at work."""
        return not is_locked(self._job.lock)

    def is_over(self) -> bool:
        """Return True if nothing of the run is left here."""
        return not is_alive(self.supervisor()) and self.is_free()

    def stop(self) -> None:
        """Let the supervisor stop the run, unless it has ended."""
        supervisor = self.supervisor()
        if supervisor is not None and not self.ended():
            with contextlib.suppress(OSError):
                mark(self._run.stop_asked)
            send_signal(supervisor, signal.SIGTERM)


def exit_code(state: Mapping[str, Any], rank: int) -> int:
    """Return the exit code of a rank, given the last state of its node: that of its trainer, 128 + N for signal N.

    It is 0 only if the whole run succeeded.
    """
    if state["ended"]["state"] == SUCCEEDED:
        return 0
    own = [process for process in state["processes"] if (process["role"], process["rank"]) == ("trainer", rank)]
    code = own[0]["exit_code"] if own else None
    if not code:
        return FAILED_CODE
    return int(code) if code > 0 else BY_SIGNAL - int(code)


def is_cause(state: Mapping[str, Any], rank: int) -> bool:
    """Return True if the trainer of this rank is why the run ended."""
    cause = state["ended"].get("cause") or {}
    return (cause.get("role"), cause.get("rank")) == ("trainer", rank)


def outcome(state: Mapping[str, Any]) -> str:
    """Return how the run ended, and why unless it succeeded."""
    ended = state["ended"]
    cause = ended.get("cause") or {}
    words = str(ended["state"])
    if words == SUCCEEDED or not cause.get("message"):
        return words
    who = f"{cause['role']}{cause['rank']}@node{cause['node']} " if "role" in cause else ""
    return f"{words}: {who}{cause['message']}"
