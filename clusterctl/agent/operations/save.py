"""Ask the lead, which is on this node, for a checkpoint now, and wait until it is complete."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from clusterctl.agent.node.jobs import STARTING, find_job, pick_run, read_state, run_state, supervisor_of
from clusterctl.agent.node.runs import need_spec
from clusterctl.agent.peer import Peer
from clusterctl.common.answers import SaveAnswer, SaveOutcome
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import RunPaths
from clusterctl.common.port_claims import uid_of_peer
from clusterctl.common.procfs import is_alive
from clusterctl.common.requests import SaveRequest
from clusterctl.common.run_spec import RunSpec
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import reader

AGAIN_S = 1.0  # after an answer that another request may change
LOOK_S = 0.5
UP_S = 2.0  # in which a supervisor that has written its state listens
MOST_BYTES = 1 << 16


def save(root: Path, request: SaveRequest, peer: Peer) -> SaveAnswer:
    """Return the `tag` and the `step` of a checkpoint that was made after this request.

    Raises AgentError if none is complete within `limit_s`, if the run is not running, or if it makes none.
    """
    job = find_job(root, request["ref"])
    run = pick_run(job)
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} was never started here", kind="usage")
    _check_checkpoints(run, need_spec(run))
    limit_s = request["limit_s"]
    why = "it is still being made"
    for answer in _answers(run, peer, time.monotonic() + limit_s):
        if "tag" in answer:
            return {"job": job.dir.name, "run": run.run, "tag": answer["tag"], "step": answer["step"]}
        why = answer["why"]
        if not answer.get("again"):
            raise _not_running(job.dir.name, why)
    raise AgentError(
        f"no checkpoint of {job.dir.name} is complete after {limit_s:g} s: {why}",
        hint=f"clusterctl status {job.dir.name} shows what its processes wait for",
    )


def _check_checkpoints(run: RunPaths, spec: RunSpec) -> None:
    """Raise AgentError unless this node leads a run that makes checkpoints."""
    name = run.job.dir.name
    if not spec.trains_with_ours:
        engine = spec.training.engine
        what = f"its ENGINE is {engine}" if engine != "clusterctl" else "it does not train with clusterctl's pservers"
        raise AgentError(f"{name} makes no checkpoints: {what}", kind="usage", hint="let the program save its own")
    if not spec.saving.checkpoints:
        raise AgentError(f"{name} was started without checkpoints", kind="usage")
    if not spec.leads:
        raise AgentError(f"node{spec.node} does not lead the run; node{spec.lead_node} does")


def _answers(run: RunPaths, peer: Peer, deadline: float) -> Iterator[SaveOutcome]:
    """Ask the lead until the deadline, and yield its answers. Raises AgentError if it is gone or does not answer."""
    alone_since: float | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        answer = _ask(run, peer, deadline)
        if answer is not None:
            alone_since = None
            yield answer
        elif time.monotonic() < deadline:
            alone_since = alone_since or time.monotonic()
            _check_running(run, time.monotonic() - alone_since)
            yield {"why": "its supervisor is starting", "again": True}
        _pause(peer, min(AGAIN_S if answer is not None else LOOK_S, left_s))


def _check_running(run: RunPaths, alone_s: float) -> None:
    """Raise AgentError if no lead listens although the run is over, lost, or has had time to begin."""
    state = read_state(run)
    now, name = run_state(run, state), run.job.dir.name
    if state.get("ended") or (now != STARTING and not is_alive(supervisor_of(state))):
        raise _not_running(name, f"it is {now}" if not state.get("ended") else f"it has ended ({now})")
    if alone_s > UP_S and is_alive(supervisor_of(state)):
        raise AgentError(
            f"the lead of {name} takes no requests: it could not open its socket, or runs in another network namespace",
            hint="it saves at the times of SAVE_EVERY; run clusterctl on the node in the same namespace as the run",
        )


def _not_running(name: str, why: str) -> AgentError:
    hint = f"clusterctl status {name} shows its state"
    return AgentError(f"nothing to save: {name} is not training: {why}", kind="refused", hint=hint)


def _ask(run: RunPaths, peer: Peer, deadline: float) -> SaveOutcome | None:
    """Return the lead's answer to a request; None if no lead listens, it ends before answering, or time runs out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(run.door)
        except OSError:
            return None
        if uid_of_peer(sock) != os.getuid():
            return None
        while (left_s := deadline - time.monotonic()) > 0:
            if peer.readable([sock.fileno()], min(LOOK_S, left_s)):
                return _parsed(sock)
            peer.look()
            peer.heartbeat()
    return None


def _parsed(sock: socket.socket) -> SaveOutcome | None:
    with contextlib.suppress(OSError, ValueError):
        answer: SaveOutcome = reader(SaveOutcome)(parse(sock.recv(MOST_BYTES)))
        return answer
    return None


def _pause(peer: Peer, limit_s: float) -> None:
    """Wait, unless the control machine leaves: that raises `Gone`."""
    peer.readable([], limit_s)
    peer.look()
    peer.heartbeat()
