"""End everything that belongs to a job on this node, and count the processes that are left."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from clusterctl.agent.node import ports
from clusterctl.agent.node.checkpoint_files import remove_half_written
from clusterctl.agent.node.job_processes import AGENTS, SUPERVISOR, agents_of, job_dir_of, named, of_job
from clusterctl.agent.node.jobs import check_own, find_job, is_free, pick_run, read_state, reason_to_stop, run_state
from clusterctl.agent.node.locks import starter_of
from clusterctl.agent.node.pieces import remove_unfinished
from clusterctl.agent.node.runs import mark_ended, membership, read_summary
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.files import mark, read_json, write_json
from clusterctl.common.paths import JobPaths, RunPaths, expand, is_job_name
from clusterctl.common.procfs import LIVE_STATES, Identity, end_all, is_alive, send_signal, wait_until
from clusterctl.common.requests import StopRequest
from clusterctl.common.run_spec import Timing

MARGIN_S = 15.0
START_S = 20.0  # a start in progress holds the job's lock before there is a supervisor to signal
UNDO_S = 5.0  # in which a start whose supervisor was ended removes the run's directory
AGENTS_S = 2.0  # in which a guardian with nothing left to do exits
PORTS_S = 2.0


def stop(root: Path, request: StopRequest, peer: Peer) -> dict[str, Any]:
    """Send TERM, wait for the run's grace, send KILL; then end every other process of the job, from any run."""
    job = _find(root, request["ref"])
    alive = _await_supervisors(job)
    run = pick_run(job)
    if run is not None and request.get("run") in (None, run.run):
        _note(run, request.get("because"))
    ended = read_state(run).get("ended") if run is not None else None
    grace_s, was, killed = _stop_supervisors(job, alive, peer)
    leftovers, by_kill, survivors = end_all(lambda: of_job(job.dir), grace_s)
    agents, _, _ = end_all(lambda: agents_of(job.dir, *AGENTS), AGENTS_S)
    # If nothing of the job was left by then, nobody could have started a process since the last search.
    left = [*of_job(job.dir), *agents_of(job.dir, *AGENTS)] if agents or leftovers or survivors else []
    wait_until(lambda: is_free(job), UNDO_S)
    spec = read_summary(run) if run else None
    if run is not None and run.dir.is_dir() and run_state(run, read_state(run)) == "lost":
        message = reason_to_stop(run) or "stopped by the user after its supervisor was lost"
        remove_half_written(run)  # the machine may have lost power
        remove_unfinished(run)
        mark_ended(run, "stopped", message)
    busy = _busy_ports(job)
    return {
        "job": job.dir.name,
        "dir": str(job.dir),
        "run": run.run if run else None,
        **(membership(spec) if spec else {}),
        "was": was,
        "ended": {"state": ended["state"], "t": ended["t"]} if ended and "t" in ended else None,
        "killed": killed + by_kill,
        "leftovers": leftovers,
        "survivors": len(left),
        "left": named(left),
        "ports_busy": [holder["port"] for holder in busy],
        "holders": busy,
    }


def _note(run: RunPaths, because: str | None) -> None:
    """Record that a run is stopped, and why if that is not the user's wish: because its start failed elsewhere."""
    before = read_json(run.stop_reason)
    reason = {"message": because} if because else {**before, "by_user": True} if before else None
    with contextlib.suppress(OSError):  # its directory has just been undone, or the disk is full
        if reason is not None:
            write_json(run.stop_reason, reason)
        mark(run.stop_asked)


def _find(root: Path, ref: str) -> JobPaths:
    """Return the job, even one whose directory is gone, as long as it has processes."""
    try:
        return find_job(root, ref)
    except AgentError as exc:
        path = expand(ref) if "/" in ref or ref.startswith("~") else root / ref
        if exc.kind != "no_job" or not is_job_name(path.name) or path.parent != root:
            raise
        if not of_job(path) and not agents_of(path, *AGENTS):
            raise
        job = JobPaths(path)
        if path.exists():
            check_own(job)
        return job


def _await_supervisors(job: JobPaths) -> list[Identity]:
    """Return the job's supervisors, even of a run whose files are gone. A start in progress is awaited, or ended."""
    alive: list[Identity] = []

    def is_known() -> bool:
        alive[:] = agents_of(job.dir, SUPERVISOR)
        return bool(alive) or is_free(job)

    if not wait_until(is_known, START_S):
        _end_holder(job)
        alive[:] = agents_of(job.dir, SUPERVISOR)
    return alive


def _stop_supervisors(job: JobPaths, alive: list[Identity], peer: Peer) -> tuple[float, str, int]:
    """Return the run's grace in seconds, its previous state, and the number of processes that needed KILL."""
    run = pick_run(job)
    spec = read_summary(run) if run else None
    known = run is not None and run.spec.is_file()
    state = read_state(run) if run is not None and known else {"processes": []}
    was = run_state(run, state) if run is not None and known else "dispatched"
    grace_s = spec.timing.grace_s if spec else Timing.grace_s
    if alive:
        peer.send({"stopping": sum(p["state"] in LIVE_STATES for p in state["processes"])})
        _end_supervisors(alive, grace_s)
    return grace_s, was, int(read_state(run).get("killed", 0)) if run is not None and alive else 0


def _end_supervisors(alive: list[Identity], grace_s: float) -> None:
    for number, limit_s in ((signal.SIGTERM, 2 * grace_s + MARGIN_S), (signal.SIGKILL, MARGIN_S)):
        for supervisor in alive:
            send_signal(supervisor, number)
        if wait_until(lambda: not any(map(is_alive, alive)), limit_s):
            return


def _end_holder(job: JobPaths) -> None:
    """End a start that holds the lock and waits for a vanished control machine. It has started nothing."""
    starter = starter_of(job)
    if starter is not None:
        process = Identity(*starter[:3])
        send_signal(process, signal.SIGTERM)
        wait_until(lambda: not is_alive(process), MARGIN_S)


def _busy_ports(job: JobPaths) -> list[dict[str, Any]]:
    """Return the listeners on ports that this run's pservers had, except other jobs, which may use them.

    A process of this account that cannot be found is just exiting, or in another container.
    """
    run = pick_run(job)
    had = {port for p in read_state(run)["processes"] for port in p.get("ports", ())} if run else set()
    if not had:
        return []
    ours = os.path.realpath(job.dir)
    listeners: list[dict[str, Any]] = []

    def are_free() -> bool:
        """Update `listeners`. One that is seen exiting has no environment any more, so look again before blaming it."""
        found = [holder for port in sorted(had) if ports.is_listening(port) for holder in ports.holders([port])]
        listeners[:] = [holder for holder in found if _may_be_of(ours, holder)]
        return not listeners

    wait_until(are_free, PORTS_S)
    return listeners


def _may_be_of(job_dir: str, holder: dict[str, Any]) -> bool:
    if holder["pid"] is None:
        return os.getuid() not in (0, holder["uid"])
    return job_dir_of(holder["pid"]) in (None, job_dir)
