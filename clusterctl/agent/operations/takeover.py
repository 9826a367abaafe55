"""The former life of a job: a new one waits for its end, since two lives must never write one directory.

ROOT_DIR may be on a disk that machines share, and a node of a job may move: Slurm queues a job again and gives it other
machines. Processes of the former life may live on where Slurm does not reach them. They end on their own, at the latest
NODE_GRACE_S after they have lost their lead. Until then their supervisor rewrites state.json every second: that is its
sign of life for another machine. A lock is not one: on some file systems flock does not reach across machines, and on
others it outlives the machine that held it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.node.jobs import is_free, pick_run, read_state, supervisor_of
from clusterctl.agent.node.locks import LockHolder, starter_of
from clusterctl.agent.node.runs import read_summary
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.procfs import is_alive, send_signal
from clusterctl.common.run_spec import Timing

WATCH_S = 3.0  # at least, because clocks may be wrong: a supervisor gives a sign every second
ENDING_S = 15.0  # for a supervisor that ends its processes, beyond their grace
POLL_S = 1.0

Sign = tuple[object, ...]
Clock = Callable[[], float]


def await_earlier_run(
    job: JobPaths, peer: Peer, *, patient: bool = False, locked: int | None = None, clock: Clock = time.monotonic
) -> None:
    """Wait until what an earlier run may have left can no longer write to the job directory.

    Raises AgentError if the run goes on. Such a run is refused at once, unless this start is `patient`. `locked` is
    another node of the job whose lock the new life has.
    """
    run, starter = pick_run(job), starter_of(job)
    if run is None or starter is None:
        return
    spec = read_summary(run)
    timing = spec.timing if spec else Timing()
    limit_s = timing.node_grace_s + 2 * timing.grace_s + ENDING_S
    if not starter.is_elsewhere and _end_if_away(run):
        _await_end(job, _looks(peer, starter, clock), limit_s)
        return
    if starter.is_elsewhere:
        if patient or is_free(job):  # else the lock reaches as far as this machine
            looks = _looks(peer, starter, clock)
            _await_silence(run, starter, timing.node_grace_s, looks, limit_s if patient else 0.0)
        return
    led_by = spec.members[0] if spec and spec.members else None
    if patient and (_is_stopping(run) or (led_by is not None and led_by == locked)):
        _await_end(job, _looks(peer, starter, clock), limit_s)


def _await_end(job: JobPaths, looks: Iterator[float], limit_s: float) -> None:
    for waited_s in looks:
        if is_free(job) or waited_s > limit_s:
            return


def _end_if_away(run: RunPaths) -> bool:
    """End a supervisor that has lost its lead and has no processes any more: it only hopes to become a spare."""
    state = read_state(run)
    supervisor = supervisor_of(state)
    if not state.get("away") or supervisor is None or not is_alive(supervisor):
        return False
    send_signal(supervisor, signal.SIGTERM)
    return True


def _looks(peer: Peer, starter: LockHolder, clock: Clock) -> Iterator[float]:
    """Yield the seconds that have passed, about once a second. Raises `Gone`."""
    began = clock()
    while True:
        yield clock() - began
        peer.heartbeat(waits=f"waiting for an earlier run on {starter.host} to end")
        peer.readable([], POLL_S)
        peer.look()


def _await_silence(
    run: RunPaths, starter: LockHolder, grace_s: float, looks: Iterator[float], patience_s: float
) -> None:
    """Wait until a run on another machine has ended, or has been silent for `grace_s`: then its lock counts no more."""
    sign, age_s = _look(run)
    since_s = -min(age_s, max(0.0, grace_s - WATCH_S))
    for now_s in looks:
        if _has_ended(run) and is_free(run.job):
            return
        seen, _ = _look(run)
        if seen != sign:
            sign, since_s = seen, now_s
            if now_s > patience_s:
                raise _still_running(run, starter)
        elif now_s - since_s >= grace_s:
            break
    if not is_free(run.job) and starter_of(run.job) == starter:
        run.job.lock.unlink(missing_ok=True)


def _look(run: RunPaths) -> tuple[Sign, float]:
    """Return the last sign of life of the run's supervisor, and its age.

    The age is by the clock of the file system, since those of machines differ. The new file also lets NFS forget what
    it knows about the directory.
    """
    probe = run.dir / ".look"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    signs = [status for path in (run.state, run.job.lock) if (status := _status(path)) is not None]
    last = max((status.st_mtime for status in signs), default=now)
    return tuple((status.st_mtime_ns, status.st_ino) for status in signs), max(0.0, now - last)


def _status(path: Path) -> Any:
    with contextlib.suppress(FileNotFoundError):
        return path.stat()
    return None


def _has_ended(run: RunPaths) -> bool:
    """Return True if the supervisor itself has recorded the end, after that of its processes."""
    ended = (read_json(run.state) or {}).get("ended")
    return ended is not None and not ended.get("late")


def _is_stopping(run: RunPaths) -> bool:
    return bool(read_state(run).get("phase") == "stopping")


def _still_running(run: RunPaths, starter: LockHolder) -> AgentError:
    name, where = run.job.dir.name, starter.host
    return AgentError(
        f"{name} is still running on {where} (run {int(run.run)})",
        kind="refused",
        hint=f"two runs must not write to one directory: end the processes of {name} on {where}, then try again",
        locked=True,
    )
