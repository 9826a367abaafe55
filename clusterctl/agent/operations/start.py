"""Start this node's part of a run: check, wait for `go`, then launch a supervisor that outlives this command.

Nothing is started before every node has reported that it can start: the control machine sends `go` only then. The job's
lock is taken here and handed to the supervisor, so that it is held exactly as long as the run lives.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from clusterctl.agent.gpus.usage import find_devices
from clusterctl.agent.node.addresses import find_address, interface_of
from clusterctl.agent.node.checkpoint_files import carry_on, set_aside_later
from clusterctl.agent.node.content import find_damage
from clusterctl.agent.node.facts import quick
from clusterctl.agent.node.job_processes import MOST_NAMED, of_job, other_jobs
from clusterctl.agent.node.jobs import choose_job, find_job, is_free, pick_run, read_state, supervisor_of
from clusterctl.agent.node.locks import JobLock
from clusterctl.agent.node.ports import find_taken, take_as_a_job
from clusterctl.agent.node.reachability import ProbeTarget, answering, try_all
from clusterctl.agent.node.runs import need_spec
from clusterctl.agent.node.shard_view import trainers_with_copies
from clusterctl.agent.operations.takeover import await_earlier_run
from clusterctl.agent.packages.interpreter import find_versions
from clusterctl.agent.packages.venvs import find_for_job, in_environment
from clusterctl.agent.peer import Peer
from clusterctl.agent.supervisor.exits import describe_exit
from clusterctl.common.engines import node_list
from clusterctl.common.errors import AgentError, first_of
from clusterctl.common.files import read_json, write_atomic, write_json
from clusterctl.common.paths import ENTRY, JobPaths, RunPaths, is_job_name
from clusterctl.common.procfs import Identity, boot_id, is_alive, send_signal, wait_until
from clusterctl.common.requests import RejoinRequest, StartRequest
from clusterctl.common.requirements import file_of
from clusterctl.common.run_spec import Gpus, RunSpec
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import SchemaError

ENDING_S = 10.0
EXITING_S = 0.5  # for processes that are just exiting


def start(root: Path, request: StartRequest, peer: Peer) -> dict[str, Any]:
    job, ran = _find(root, request["ref"])
    _check_identity(job, request)
    await_earlier_run(job, peer, patient=request.get("patient", False), locked=request["locked"])
    with JobLock(job) as lock:
        _check_undamaged(job, peer)
        _check_nothing_left(job)
        venv = find_for_job(root, job.dir, request["runtime"])
        python = str(venv / "bin/python") if venv else request["python"]
        versions = find_versions(root, python, runtime=request["runtime"])
        address = find_address(request["address"], request["nic"])
        devices = find_devices(request["gpus"])
        ready = {
            "job": job.dir.name,
            "ran": ran,
            "dir": str(job.dir),
            "address": address,
            "newest_run": job.newest_run() or "0",
            "versions": versions,
            "environment": venv.name if venv else None,
            "requirements": file_of(job.dir),
            "cores": len(os.sched_getaffinity(0)),
            "machine": _machine(),
            "other_jobs": other_jobs(job.dir),
            "shards": trainers_with_copies(job),
            "devices": devices,
            **(_ports(address, request["port"]) if request["pserver_port"] else {}),
            **({"local_name": _has_local_name()} if request["host_name"] else {}),
            **quick(root),
        }
        go = _wait_for_go(ready, request, peer)
        if "spec" not in go:
            raise AgentError("the start was cancelled")
        spec = in_environment(_checked(go["spec"]), venv, request["python"]).replace(versions=versions)
        spec = _with_devices(spec, devices["devices"])
        previous = job.newest_run()
        run = job.run(spec.run)
        try:
            began = _prepare(run, previous, spec, go)
            return {"dir": str(job.dir), "t": began, **_launch(run, lock)}
        except BaseException:
            _undo(run, previous, resumed=_goes_on(go))
            raise


def _find(root: Path, ref: str | None) -> tuple[JobPaths, list[Any]]:
    try:
        return choose_job(root, ref, to_resume=True)
    except AgentError as exc:
        path = root / ref if ref and is_job_name(ref) else None
        if exc.kind == "no_job" and path is not None and path.is_dir():
            hint = f"to run it where it is: clusterctl start --job_workspace {ref} --adopt"
            raise AgentError(f"{path} was not made by clusterctl dispatch", kind="refused", hint=hint) from exc
        raise


def _check_undamaged(job: JobPaths, peer: Peer) -> None:
    damaged = find_damage(job, peer.heartbeat)
    if damaged:
        hint = f"put these files back into {job.dir}, or dispatch the workspace again"
        names = first_of(damaged, MOST_NAMED)
        raise AgentError(f"a power cut seems to have damaged {job.dir.name}: {names}", kind="refused", hint=hint)


def _check_nothing_left(job: JobPaths) -> None:
    """Raise AgentError if processes of an earlier run outlived its supervisor and its guardian.

    A second generation beside them would write to the same files.
    """
    left: list[Identity] = []

    def is_clear() -> bool:
        left[:] = of_job(job.dir)
        return not left

    if job.newest_run() is not None and not wait_until(is_clear, EXITING_S):
        count = "1 process" if len(left) == 1 else f"{len(left)} processes"
        pids = ", ".join(str(process.pid) for process in left[:MOST_NAMED])
        message = f"{count} of {job.dir.name} left by a dead supervisor: pid {pids}"
        raise AgentError(message, kind="refused", hint=f"to end what is left: clusterctl stop {job.dir.name}")


def _machine() -> str:
    """Return a name for this machine and the cores of it that this account may use; nodes that share them share it."""
    return f"{boot_id()} {','.join(map(str, sorted(os.sched_getaffinity(0))))}"


def _has_local_name() -> bool:
    """Return True if this machine's host name is a loopback address here, or none."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return True


def _ports(address: str, first: int) -> dict[str, Any]:
    """Return the ports that no program can be given here, and a name for the network stack that has them."""
    return {"taken": find_taken(address, first), "network": f"{boot_id()} {Path('/proc/self/ns/net').stat().st_ino}"}


def _wait_for_go(ready: dict[str, Any], request: StartRequest, peer: Peer) -> dict[str, Any]:
    """Listen on the job's ports until all nodes have tried to reach each other. Return the next message."""
    listeners = _listen(ready["address"], request)
    with answering(listeners) as listening:
        peer.send({"ready": {**ready, "listening": listening}})
        message = peer.receive()
        if "reach" in message:
            peer.send({"reach": try_all([ProbeTarget(*target) for target in message["reach"]])})
            message = peer.receive()
    return message


def _checked(value: object) -> RunSpec:
    try:
        return RunSpec.from_json(value)
    except SchemaError as exc:
        hint = "use the same version of clusterctl for the whole job"
        raise AgentError(f"the control machine sent a malformed spec of the run: {exc}", hint=hint) from exc


def _with_devices(spec: RunSpec, devices: list[str] | None) -> RunSpec:
    return spec if devices is None else spec.replace(gpus=(spec.gpus or Gpus()).replace(devices=tuple(devices)))


def _listen(address: str, request: StartRequest) -> list[socket.socket]:
    try:
        return take_as_a_job(address, request["port"], request["count"], lead=request["lead"])[0]
    except OSError as exc:
        raise AgentError(
            str(exc), kind="refused", hint="set PORT in conf.py to the first of 1,000 ports to choose from"
        ) from exc


def _check_identity(job: JobPaths, request: StartRequest) -> None:
    record = read_json(job.record)
    if not isinstance(record, dict) or not {"node", "nodes"} <= record.keys():
        raise AgentError(f"{job.record} is damaged", kind="refused", hint="dispatch the workspace again")
    if (record["node"], record["nodes"]) == (request["node"], request["nodes"]):
        return
    name, did = job.dir.name, "dispatched to"
    hint = "HOSTS has changed since then: dispatch again, or use the earlier conf.py"
    if record.get("adopted"):
        did, again = "adopted on", f"clusterctl start --job_workspace {name} --adopt"
        hint = f"if HOSTS has changed: {again}; if nodes share ROOT_DIR, give each its own: Host(root_dir=...)"
    raise AgentError(
        f"{name} was {did} this host as node {record['node']} of {record['nodes']}, "
        f"and conf.py now calls it node {request['node']} of {request['nodes']}",
        kind="refused",
        hint=hint,
    )


def _goes_on(go: dict[str, Any]) -> bool:
    """Return True if the run resumes one of the same job, and so takes over its outputs."""
    return "resume" in go and "job" not in go["resume"]


def _prepare(run: RunPaths, previous: str | None, spec: RunSpec, go: dict[str, Any]) -> float:
    """Create the run's directory, and move logs and outputs of an older run beside its events. Return the time.

    A resumed run keeps the outputs up to its checkpoint, unless that is of another job.
    """
    job, resume, goes_on = run.job, go.get("resume"), _goes_on(go)
    run.dir.mkdir(0o700)
    run.keys.mkdir(0o700)
    if resume:
        of = find_job(job.dir.parent, resume["job"]) if "job" in resume and resume["files"] else job
        carry_on(run, resume, of)
    if previous is not None:
        shutil.rmtree(job.run(previous).keys, ignore_errors=True)  # left behind if its supervisor was killed
        for directory in (job.log,) if goes_on else (job.log, job.output):
            if directory.is_dir() and any(directory.iterdir()):
                directory.rename(job.run(previous).dir / directory.name)
        if resume and goes_on:
            set_aside_later(job, resume["manifest"], job.run(previous).dir / "output")
    for directory in (job.log, job.output):
        directory.mkdir(0o700, exist_ok=True)
    for name, text in go["keys"].items():
        write_atomic(run.keys / Path(name).name, text.encode())
    if spec.hosts:
        write_json(run.nodes, {"nodes": node_list(spec)})
    now = time.time()
    write_json(run.spec, spec.replace(t=now).to_json())
    return now


def _undo(run: RunPaths, previous: str | None, *, resumed: bool) -> None:
    """Undo `_prepare`: remove the run's directory, and move the previous run's files back."""
    shutil.rmtree(run.dir, ignore_errors=True)
    if previous is None:
        return
    older = run.job.run(previous).dir
    if resumed and (older / "output").is_dir():
        for path in (older / "output").iterdir():
            path.rename(run.job.output / path.name)
        (older / "output").rmdir()
    for directory in (run.job.log,) if resumed else (run.job.log, run.job.output):
        kept = older / directory.name
        if kept.is_dir():
            shutil.rmtree(directory, ignore_errors=True)
            kept.rename(directory)


def rejoin(root: Path, request: RejoinRequest, peer: Peer) -> dict[str, Any]:
    """Let this node rejoin a running run, or let its supervisor restart processes that it had given up."""
    job = find_job(root, request["ref"])
    run = pick_run(job)
    if run is None or not run.spec.is_file():
        raise AgentError(f"{job.dir.name} has never been started here", kind="usage")
    spec = need_spec(run)
    state = read_state(run)
    supervisor = supervisor_of(state)
    about = {"job": job.dir.name, "run": run.run}
    if state.get("ended"):
        return {**about, "did": "ended", "state": state["ended"]["state"]}
    if supervisor is not None and is_alive(supervisor):
        send_signal(supervisor, signal.SIGUSR1)
        return {**about, "did": "told"}
    if spec.leads:
        hint = "run clusterctl stop, then clusterctl start --resume"
        raise AgentError("this node led the run, which cannot continue without it", hint=hint)
    if not run.tls.is_file():
        raise AgentError(
            "the keys of the run are gone from this node", hint="run clusterctl stop, then clusterctl start --resume"
        )
    await_earlier_run(job, peer, patient=True)
    # A guardian may still be ending leftover processes.
    wait_until(lambda: is_free(job), 2 * spec.timing.grace_s + ENDING_S)
    with JobLock(job) as lock:
        _check_undamaged(job, peer)
        _renew(run, spec, request)
        return {**about, "did": "joined", **_launch(run, lock, "new")}


def _renew(run: RunPaths, spec: RunSpec, request: RejoinRequest) -> None:
    """Record the address and the GPUs of this node if it has others than at the start, as a pod that was replaced has.

    Its supervisor tells the lead where its processes listen, and the lead tells the other nodes.
    """
    renewed = spec
    if interface_of(spec.address) is None:
        renewed = renewed.replace(address=find_address(request["address"], request["nic"]))
    if spec.gpus is not None:
        renewed = _with_devices(renewed, find_devices(spec.gpus.limit)["devices"])
    if renewed != spec:
        write_json(run.spec, renewed.to_json())


def _launch(run: RunPaths, lock: int, *more: str) -> dict[str, Any]:
    """Launch a supervisor that outlives this command. Return its report when it is up."""
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
    answer: dict[str, Any] = parse(text) if text else {"error": _early_exit(process.wait(), log_file)}
    if "error" in answer:
        process.wait()
        raise AgentError(f"the supervisor did not start: {answer['error']}", kind=answer.get("kind", "node"))
    up: dict[str, Any] = answer["up"]
    return up


def _early_exit(code: int, log_file: Path) -> str:
    output = _tail(log_file)
    return f"it {describe_exit(code)} immediately" + (f": {output}" if output else "")


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-400:].strip()
