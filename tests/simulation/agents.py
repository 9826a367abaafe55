"""The agents of simulated nodes: stand-ins for the operations that keepers, starts and stops ask for.

They hold the lock of the job, as the real ones do, until a supervisor has it, or they end.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.run_spec import RunSpec
from simulation.blocking import Blocking
from simulation.disk import StoredRun
from simulation.machine import LEAD_PORT, Machine, Process, SupervisorProcess
from simulation.network import END, Listener, Socket

SSH_PORT = 22
SILENCE_S = 30.0
POLL_S = 0.1
LOCK_S = 0.5
ENDING_S = 15.0
START_S = 20.0
FAILS = 0.01  # of the starts on a node
BEAT = "beat"
DISPATCHED_AS = {"workspace": "w", "content": "0", "files": 1, "bytes": 1, "t": 1.0}


class Sshd(Process):
    """Starts an agent for each connection."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._listener = Listener(self, SSH_PORT)
        self._listener.on_connected = self._accept

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        AgentProcess(self.machine, sock)


class AgentProcess(Process):
    """Serves one request: that which arrives on `sock`, or `request`."""

    def __init__(self, machine: Machine, sock: Socket | None, request: Mapping[str, Any] | None = None) -> None:
        super().__init__(machine)
        self._sock = sock
        self._inbox: deque[Any] = deque([request] if request else [])
        self._arrived = machine.monotonic()
        self._gone = False
        self._wake: Callable[[], None] = lambda: None
        if sock is not None:
            sock.process = self
            self.sockets.append(sock)
            sock.read(self._read)
        Blocking(self, self._serve)

    def _read(self, item: Any) -> None:
        self._arrived = self.machine.monotonic()
        if item == END:
            self._gone = True
        elif item != BEAT:
            self._inbox.append(item)
        self._wake()

    def _serve(self) -> None:
        try:
            request = self.receive()
            self.send({"done": OPERATIONS[request["op"]](self, request)})
        except AgentError as exc:
            self.send({"error": exc.to_json()})
        except Gone:
            pass
        finally:
            self.end()

    def send(self, message: Mapping[str, Any]) -> None:
        if self._sock is not None:
            self._sock.send(message)

    def receive(self) -> Any:
        """Return the next message. Raises Gone if the other side is gone, or silent for too long."""
        while not self._inbox:
            self.look()
            self.sleep(SILENCE_S / 3)
        return self._inbox.popleft()

    def look(self) -> None:
        """Raise Gone if the other side is gone, or silent for too long."""
        if self._sock is not None and (self._gone or self.machine.monotonic() - self._arrived > SILENCE_S):
            raise Gone

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until something arrives."""

        def begin(wake: Callable[[], None]) -> None:
            self._wake = wake
            self.after(seconds, wake)

        thread = self.machine.world.thread
        assert thread is not None
        thread.wait(begin)

    def await_(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        """Wait until something is so. Return False if it is not within `limit_s`."""
        limit = self.machine.monotonic() + limit_s
        while not is_so():
            self.look()
            if self.machine.monotonic() >= limit:
                return False
            self.sleep(POLL_S)
        return True


def _need_job(machine: Machine) -> None:
    if not machine.disk.dispatched:
        raise AgentError("there is no such job", kind="no_job")


def _asked(machine: Machine, request: Mapping[str, Any]) -> StoredRun | None:
    """Return the run that is asked for, else the newest one."""
    _need_job(machine)
    return machine.disk.runs.get(request.get("run") or machine.disk.newest)


def _state(machine: Machine, run: StoredRun) -> str:
    """Return what `agent.node.jobs.run_state` would."""
    process = machine.supervisor
    if run.ended is not None:
        return str(run.ended["state"])
    if process is None or process.spec.run != run.spec.run:
        return "lost"
    if process.supervisor is None:
        return "starting"
    if process.supervisor._is_lost():
        return "lost"
    return "starting" if run.phase in (None, "gathering", "pservers", "trainers") else "running"


def _describe(machine: Machine, run: StoredRun | None) -> dict[str, Any]:
    about = {"job": machine.world.job, "dir": "/job", "record": DISPATCHED_AS, "now": machine.wall(), "processes": []}
    if run is None:
        return {**about, "run": None, "state": "dispatched"}
    spec = run.spec
    more = {"started": spec.t, "members": list(spec.members), "left_out": [one.to_json() for one in spec.left_out]}
    return {**about, "run": spec.run, "state": _state(machine, run), **more, "phase": run.phase, "ended": run.ended}


def status(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    return {**_describe(agent.machine, _asked(agent.machine, request)), "ran": []}


def diagnose(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    while "now" in agent.receive():
        agent.send({"now": agent.machine.wall()})
    run = _asked(agent.machine, request)
    answer = {**_describe(agent.machine, run), "events": [], "outputs": []}
    if run is None:
        return answer
    stopped = {"stop_asked": run.stop_asked, "start_failed": run.undone}
    return {**answer, **stopped, "events": list(run.events), "spec": run.spec.to_json()}


def find_checkpoints(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    _need_job(agent.machine)
    rows = []
    for number, run in agent.machine.disk.runs.items():
        own = {tag for tag, file in run.pieces.keys() - run.copied} | run.manifests.keys()
        found = {tag: run.manifests.get(tag) for tag in own}
        if request["copies"]:
            found |= {tag: manifest for tag, manifest in run.copies.items() if found.get(tag) is None}
        for tag, manifest in sorted(found.items()):
            if tag.startswith("step-"):
                rows.append({"run": number, "tag": tag, "manifest": manifest, "reason": None, "pieces": []})
    return {"job": agent.machine.world.job, "checkpoints": rows}


def verify_checkpoint(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    _need_job(agent.machine)
    run = agent.machine.disk.runs.get(request["run"])
    if run is None:
        return {"pieces": {}}
    found = [one for one in request["files"] if (request["tag"], one["file"]) in run.pieces]
    return {"pieces": {one["file"]: None if run.has(request["tag"], one) else "is damaged" for one in found}}


def start(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """As `agent.operations.start.start`."""
    machine = agent.machine
    _need_job(machine)
    _await_earlier_run(agent, request)
    if not agent.await_(lambda: not machine.is_locked, LOCK_S):
        raise AgentError("the job is in use", kind="refused", locked=True)
    machine.lockers.add(agent)
    if machine.programs:
        raise AgentError("processes are left by a dead supervisor", kind="refused")
    number = machine.number
    agent.send(
        {
            "ready": {
                "job": machine.world.job,
                "dir": "/job",
                "address": f"host{number}",
                "newest_run": machine.disk.newest or "0",
                "versions": {},
                "environment": None,
                "requirements": None,
                "cores": 4,
                "machine": str(number),
                "other_jobs": [],
                "shards": [],
                "devices": {"devices": None, "pool": str(number), "problem": None},
                "clock": machine.wall(),
                "listening": [[LEAD_PORT, "token"]],
            }
        }
    )
    go = agent.receive()
    if "reach" in go:
        agent.send({"reach": [[*target[:3], _probe(machine, target[0])] for target in go["reach"]]})
        go = agent.receive()
    if "spec" not in go:
        raise AgentError("the start was cancelled")
    spec = RunSpec.from_json(go["spec"]).replace(t=machine.wall())
    if machine.world.lot.random() < FAILS:
        raise AgentError("the supervisor did not start")
    run = machine.disk.runs[spec.run] = StoredRun(spec)
    if "resume" in go:
        before, tag = machine.disk.runs.get(go["resume"]["run"]), go["resume"]["tag"]
        run.manifests[tag] = go["resume"]["manifest"]
        run.pieces = {(tag, file): before.pieces[tag, file] for file in go["resume"]["files"]} if before else {}
    machine.world.begins(machine, spec)
    SupervisorProcess(machine, spec)
    return {"dir": "/job", "t": spec.t, "port": LEAD_PORT if spec.leads else None}


def _await_earlier_run(agent: AgentProcess, request: Mapping[str, Any]) -> None:
    """As `agent.operations.takeover.await_earlier_run` on a machine of its own."""
    machine = agent.machine
    run, process = machine.disk.runs.get(machine.disk.newest), machine.supervisor
    if run is None:
        return
    timing = run.spec.timing
    limit_s = timing.node_grace_s + 2 * timing.grace_s + ENDING_S
    away = process is not None and process.supervisor is not None and process.supervisor._is_lost()
    if away:
        process.signal(signal.SIGTERM)  # type: ignore[union-attr]
    led_by_locked = run.spec.members[0] == request["locked"]
    if away or (request.get("patient") and (run.phase == "stopping" or led_by_locked)):
        agent.await_(lambda: not machine.is_locked, limit_s)


def _probe(machine: Machine, other: int) -> str:
    network = machine.world.network
    return "ok" if network.answers(machine, network.machines[other]) else "silent"


def stop(agent: AgentProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """As `agent.operations.stop.stop`."""
    machine = agent.machine
    _need_job(machine)
    if not agent.await_(lambda: machine.supervisor is not None or not machine.is_locked, START_S):
        for other in list(machine.lockers - {agent}):
            other.end()
    run = machine.disk.runs.get(machine.disk.newest)
    if run is not None and request.get("run") in (None, run.spec.run):
        run.stop_asked, run.undone = True, "because" in request
    process = machine.supervisor
    if process is not None:
        grace_s = process.spec.timing.grace_s
        process.signal(signal.SIGTERM)
        if not agent.await_(lambda: machine.supervisor is not process, 2 * grace_s + ENDING_S):
            process.end()
    for program in list(machine.programs.values()):
        machine.exited(program, -signal.SIGKILL)
    if run is not None and run.ended is None:
        end = {"event": "ended", "state": "stopped", "cause": {"kind": "stopped"}, "late": True}
        run.ended = {**end, "t": machine.wall(), "node": machine.number}
        run.events.append(run.ended)
    nothing: dict[str, Any] = {"killed": 0, "survivors": 0, "leftovers": 0, "left": [], "ports_busy": [], "holders": []}
    return {**_describe(machine, run), "was": "running", **nothing}


OPERATIONS: Mapping[str, Callable[[AgentProcess, Mapping[str, Any]], dict[str, Any]]] = {
    "status": status,
    "diagnose": diagnose,
    "find_checkpoints": find_checkpoints,
    "verify_checkpoint": verify_checkpoint,
    "start": start,
    "stop": stop,
}
