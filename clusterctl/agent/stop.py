"""Ends everything that belongs to a job on this node, and counts what is left."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

from clusterctl.agent.files import read_json
from clusterctl.agent.jobs import (
    find_job,
    is_free,
    mark_ended,
    membership,
    pick_run,
    read_state,
    run_state,
    supervisor_of,
)
from clusterctl.agent.paths import JobPaths
from clusterctl.agent.processes import (
    LIVE_STATES,
    Identity,
    end_all,
    find_by_environment,
    is_alive,
    run_environment,
    send_signal,
    wait_until,
)
from clusterctl.agent.protocol import Peer

MARGIN_S = 15.0
START_S = 20.0  # a start under way holds the job's lock before there is a supervisor to be told


def stop(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """TERM, the run's grace, KILL; then whatever else carries the job's environment, whoever started it."""
    job = find_job(root, request["ref"])
    if not wait_until(lambda: _has_supervisor(job) or is_free(job), START_S):
        _end_holder(job)
    grace_s, was, killed = _stop_supervisor(job, peer)
    found, by_kill, survivors = end_all(lambda: find_by_environment(run_environment(job.dir)), grace_s)
    run = pick_run(job)
    spec = read_json(run.spec) if run else None
    if run is not None and run_state(run, read_state(run)) == "lost":
        mark_ended(run, "stopped", "stopped by the user after its supervisor was lost")
    return {
        "job": job.dir.name,
        "dir": str(job.dir),
        "run": run.run if run else None,
        **(membership(spec) if spec else {}),
        "was": was,
        "killed": killed + by_kill,
        "leftovers": found,
        "survivors": survivors,
        "ports_busy": _busy_ports(job),
    }


def _stop_supervisor(job: JobPaths, peer: Peer) -> tuple[float, str, int]:
    """(the run's grace in seconds, the state it was in, how many processes needed KILL)."""
    run = pick_run(job)
    spec = read_json(run.spec) if run else None
    if run is None or spec is None:
        return 10.0, "dispatched", 0
    state = read_state(run)
    was, grace_s = run_state(run, state), float(spec["grace_s"])
    who = supervisor_of(state)
    if who is None or not is_alive(who):
        return grace_s, was, 0
    peer.send({"stopping": sum(p["state"] in LIVE_STATES for p in state["processes"])})
    send_signal(who, signal.SIGTERM)
    if not wait_until(lambda: not is_alive(who), 2 * grace_s + MARGIN_S):
        send_signal(who, signal.SIGKILL)
        wait_until(lambda: not is_alive(who), MARGIN_S)
    return grace_s, was, int(read_state(run).get("killed", 0))


def _end_holder(job: JobPaths) -> None:
    """A start whose control machine has vanished holds the lock and waits; it has started nothing."""
    holder = read_json(job.lock)
    if holder:
        who = Identity(*holder)
        send_signal(who, signal.SIGTERM)
        wait_until(lambda: not is_alive(who), MARGIN_S)


def _has_supervisor(job: JobPaths) -> bool:
    run = pick_run(job)
    return run is not None and is_alive(supervisor_of(read_state(run)))


def _busy_ports(job: JobPaths) -> list[int]:
    """The ports of this run's pservers on which somebody still listens."""
    run = pick_run(job)
    ports = [p["port"] for p in read_state(run)["processes"] if p.get("port")] if run else []
    return [port for port in ports if not _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True
