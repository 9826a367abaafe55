"""Starts this node's part of a run: looks first, waits for the word, then leaves a supervisor behind.

Nothing is started anywhere before every node has said that it can: the control machine sends `go` only then. The job's
lock is taken here and handed to the supervisor, so that it lives exactly as long as the run does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from clusterctl.agent.node.addresses import find_address
from clusterctl.agent.node.checkpoint_files import carry_on, set_aside_later
from clusterctl.agent.node.facts import quick
from clusterctl.agent.node.jobs import find_job, is_free, need_spec, pick_run, read_state, supervisor_of
from clusterctl.agent.node.locks import JobLock
from clusterctl.agent.node.ports import take_as_a_job
from clusterctl.agent.node.reachability import Target, answering, try_all
from clusterctl.agent.packages.interpreter import find_versions
from clusterctl.agent.packages.venvs import find_for_job, in_environment
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_atomic, write_json
from clusterctl.common.paths import ENTRY, JobPaths, RunPaths
from clusterctl.common.procfs import is_alive, send_signal, wait_until
from clusterctl.common.records import RecordError
from clusterctl.common.run_spec import RunSpec

ENDING_S = 10.0


def start(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    job = find_job(root, request["ref"])
    _check_identity(job, request)
    with JobLock(job) as lock:
        venv = find_for_job(root, job.dir, request["runtime"])
        python = str(venv / "bin/python") if venv else request["python"]
        versions = find_versions(root, python, runtime=request["runtime"])
        ready = {
            "job": job.dir.name,
            "dir": str(job.dir),
            "address": find_address(request.get("address"), request.get("nic")),
            "newest_run": job.newest_run() or "0",
            "versions": versions,
            "environment": venv.name if venv else None,
            "cores": len(os.sched_getaffinity(0)),
            **quick(root),
        }
        go = _wait_for_go(ready, request, peer)
        if "spec" not in go:
            raise AgentError("the start was given up")
        spec = in_environment(_checked(go["spec"]), venv, request["python"])
        previous = job.newest_run()
        run = job.run(spec.run)
        try:
            _prepare(run, previous, spec, go)
            return {"dir": str(job.dir), **_launch(run, lock)}
        except BaseException:
            _undo(run, previous, resumed="resume" in go)
            raise


def _wait_for_go(ready: dict[str, Any], request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Listens as the job will until all nodes have tried to reach each other."""
    listeners = _listen(ready["address"], request)
    with answering(listeners) as listening:
        peer.send({"ready": {**ready, "listening": listening}})
        word = peer.next_word()
        if "reach" in word:
            peer.send({"reach": try_all([Target(*target) for target in word["reach"]])})
            word = peer.next_word()
    return word


def _checked(value: object) -> RunSpec:
    try:
        return RunSpec.from_json(value)
    except RecordError as exc:
        hint = "use the same version of clusterctl for the whole job"
        raise AgentError(f"the control machine sent a malformed spec of the run: {exc}", hint=hint) from exc


def _listen(address: str, request: dict[str, Any]) -> list[socket.socket]:
    try:
        return take_as_a_job(address, request["port"], request["count"], lead=request["lead"])[0]
    except OSError as exc:
        raise AgentError(
            str(exc), kind="refused", hint="PORT in conf.py names the first of 1,000 to choose from"
        ) from exc


def _check_identity(job: JobPaths, request: dict[str, Any]) -> None:
    record = read_json(job.record)
    if record["node"] != request["node"] or record["nodes"] != request["nodes"]:
        raise AgentError(
            f"{job.dir.name} was dispatched to this host as node {record['node']} of {record['nodes']}, "
            f"and conf.py now calls it node {request['node']} of {request['nodes']}",
            kind="refused",
            hint="HOSTS has changed since: dispatch again, or use the conf.py of that time",
        )


def _prepare(run: RunPaths, previous: str | None, spec: RunSpec, go: dict[str, Any]) -> None:
    """Makes the run's directory; logs and outputs of an older run move beside its events.

    A run that is resumed has the outputs up to its checkpoint for its own.
    """
    job, resume = run.job, go.get("resume")
    run.dir.mkdir(0o700)
    run.keys.mkdir(0o700)
    if resume:
        carry_on(run, resume)
    if previous is not None:
        shutil.rmtree(job.run(previous).keys, ignore_errors=True)  # left when its supervisor was killed
        for place in (job.log,) if resume else (job.log, job.output):
            if place.is_dir() and any(place.iterdir()):
                place.rename(job.run(previous).dir / place.name)
        if resume:
            set_aside_later(job, resume["manifest"], job.run(previous).dir / "output")
    for place in (job.log, job.output):
        place.mkdir(0o700, exist_ok=True)
    for name, text in go["keys"].items():
        write_atomic(run.keys / Path(name).name, text.encode())
    write_json(run.spec, spec.replace(t=time.time()).to_json())


def _undo(run: RunPaths, previous: str | None, *, resumed: bool) -> None:
    """There was no such run: what the previous one left is where it was."""
    shutil.rmtree(run.dir, ignore_errors=True)
    if previous is None:
        return
    older = run.job.run(previous).dir
    if resumed and (older / "output").is_dir():
        for place in (older / "output").iterdir():
            place.rename(run.job.output / place.name)
        (older / "output").rmdir()
    for place in (run.job.log,) if resumed else (run.job.log, run.job.output):
        kept = older / place.name
        if kept.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            kept.rename(place)


def rejoin(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Lets this node join a run that goes on without it, or start again what was given up here."""
    job = find_job(root, request["ref"])
    run = pick_run(job)
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} has never been started here", kind="usage")
    spec = need_spec(run)
    state = read_state(run)
    who = supervisor_of(state)
    about = {"job": job.dir.name, "run": run.run}
    if state.get("ended"):
        return {**about, "did": "ended", "state": state["ended"]["state"]}
    if who is not None and is_alive(who):
        send_signal(who, signal.SIGUSR1)
        return {**about, "did": "told"}
    if spec.leads:
        hint = "clusterctl stop, then clusterctl start --resume"
        raise AgentError("this node led the run, which cannot go on without it", hint=hint)
    if not run.tls.is_file():
        raise AgentError("the keys of the run are gone from this node", hint="stop the job, then start --resume")
    wait_until(lambda: is_free(job), 2 * spec.timing.grace_s + ENDING_S)  # a guardian may be ending what was left
    with JobLock(job) as lock:
        return {**about, "did": "joined", **_launch(run, lock, "new")}


def _launch(run: RunPaths, lock: int, *more: str) -> dict[str, Any]:
    """Leaves a supervisor behind, and returns what it reports when it is up."""
    read_end, write_end = os.pipe()
    arguments = ["supervisor", str(run.job.dir), run.run, str(lock), str(write_end), *more]
    log_file = run.job.log / "supervisor.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", ENTRY, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock, write_end),
            cwd="/",
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end) as report:
        text = report.read()
    answer: dict[str, Any] = json.loads(text) if text else {"error": _why_at_once(process.wait(), log_file)}
    if "error" in answer:
        process.wait()
        raise AgentError(f"the supervisor did not start: {answer['error']}", kind=answer.get("kind", "node"))
    up: dict[str, Any] = answer["up"]
    return up


def _why_at_once(code: int, log_file: Path) -> str:
    from clusterctl.agent.supervisor.exits import describe_exit

    said = _tail(log_file)
    return f"it {describe_exit(code)} at once" + (f": {said}" if said else "")


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-400:].strip()
