"""A simulated run: its machines, and what must hold whatever happens to them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.agent.lead.actions import WriteManifest
from clusterctl.agent.lead.lease import LOOK_S
from clusterctl.agent.supervisor.supervisor import Supervisor
from clusterctl.common.paths import JobPaths
from clusterctl.common.run_spec import LeadAddress, RunSpec
from clusterctl.config import Host, from_values
from clusterctl.inventory import build
from clusterctl.launch import plan
from simulation.machine import LEAD_PORT, Loop, Machine, SupervisorProcess
from simulation.network import Network
from simulation.program import MODEL, STEPS, Program, Pserver
from simulation.time import Time

NODE_GRACE_S, GRACE_S, HEARTBEAT_S = 5.0, 1.0, 1.0
RATES = (1.0, 1.0005, 0.9995)  # NTP corrects a clock by at most 500 ppm
JOB = "JOB20261121-081530"


@functools.cache
def specs(
    nodes: int, pservers: int, trainers: int, spares: int, copies: int, restarts: int, loss: tuple[str, str]
) -> tuple[RunSpec, ...]:
    """Return the specs of a run by node. `loss`: ON_NODE_LOSS and ON_TRAINER_LOSS."""
    hosts = [Host(f"host{number}", spare=number >= nodes - spares) for number in range(nodes)]
    settings = from_values(
        {
            "HOSTS": hosts,
            "PSERVERS": pservers,
            "TRAINERS": trainers,
            "COPIES": copies,
            "RESTARTS": restarts,
            "ON_NODE_LOSS": loss[0],
            "ON_TRAINER_LOSS": loss[1],
            "NODE_GRACE_S": NODE_GRACE_S,
            "GRACE_S": GRACE_S,
            "HEARTBEAT_S": HEARTBEAT_S,
        }
    )
    launch = plan(settings, build(settings))
    ids = range(nodes)
    facts: dict[str, Any] = {
        "job": JOB,
        "run": "0001",
        "addresses": {number: f"host{number}" for number in ids},
        "machines": {number: str(number) for number in ids},
        "cores": dict.fromkeys(ids, 4),
    }
    lead = LeadAddress(host="host0", port=LEAD_PORT)
    return tuple(launch.spec(node, **facts, lead=lead if node.id else None) for node in launch.nodes)


class World:
    def __init__(self, lot: random.Random, run: tuple[RunSpec, ...]) -> None:
        self.lot = lot
        self.time = Time()
        self.network = Network(self.time, lot)
        self.specs = run
        self.current: Machine | None = None
        self.servers: dict[str, Pserver] = {}
        self.result = ""  # the last model
        self.events: list[tuple[float, int, Mapping[str, Any]]] = []
        self.models: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {"": ("", ())}
        self.copies: dict[tuple[str, str], set[int]] = {}  # who has copied a piece, as the lead knows
        self.copying: dict[tuple[int, str], list[tuple[str, str]]] = {}  # the pieces last copied, by node and tag
        self._kept: set[str] = set()  # the checkpoints that the lead knows to be complete, and
        self._copied: set[str] = set()  # to be copied
        self._may_shrink = run[0].failures.on_trainer_loss == "shrink"
        self._keys = itertools.count()
        self._newest: dict[tuple[int, int], int] = {}  # by pserver and trainer: the newest attempt that has counted
        self.machines = [Machine(self, number, lot.choice(RATES)) for number in range(len(run))]
        self.network.machines = self.machines

    @property
    def here(self) -> Machine:
        """The machine whose process is running."""
        assert self.current is not None
        return self.current

    @property
    def lead(self) -> Any:
        """The state machine of the lead; None if its supervisor is gone."""
        process = self.machines[0].supervisor
        return process.supervisor.lead._lead if process and process.supervisor else None

    def new_key(self) -> str:
        return f"{next(self._keys):040d}"

    def begin(self) -> None:
        """Start the supervisors, as a start leaves them."""
        for machine, spec in zip(self.machines, self.specs, strict=True):
            machine.disk.spec = spec
            machine.keys = {process.name: self.new_key() for process in spec.processes}
        for machine, spec in zip(self.machines, self.specs, strict=True):
            SupervisorProcess(machine, spec)

    def make_supervisor(self, machine: Machine, spec: RunSpec, loop: Loop, *, new: bool) -> Supervisor:
        run = JobPaths(Path(f"/simulated/{machine.number}/{JOB}")).run("0001")
        return Supervisor(run, spec, -1, loop, new=new)

    def watch(self, lead: Any) -> None:
        """Note which copies the lead hears of."""
        handle = lead.handle

        def watched(node: int, message: Mapping[str, Any], now: float) -> Any:
            if message["do"] == "copied" and message["of"] == "copy" and "message" not in message:
                for name in self.copying.get((node, message["tag"]), ()):
                    self.copies[name].add(node)
            return handle(node, message, now)

        lead.handle = watched

    def story(self) -> str:
        return "\n".join(f"{t:8.3f} node{number} {event}" for t, number, event in self.events)

    # Invariants.

    def recorded(self, machine: Machine, event: Mapping[str, Any]) -> None:
        self.events.append((self.time.now, machine.number, event))
        if event["event"] == "rolled_back":
            self._check_recovery(event["tag"] or "")
        elif event["event"] == "saved" and event.get("checkpoint"):
            self._kept.add(event["tag"])
        elif event["event"] == "copied" and event.get("checkpoint"):
            self._copied.add(event["tag"])
        elif event["event"] == "phase" and "no node has" in str(event.get("cause")):
            self._check_recovery("")

    def spawned(self, program: Program) -> None:
        """No process begins while another machine runs it still, unless no guardian there could have ended it."""
        self.events.append((self.time.now, program.machine.number, {"event": "spawn", "key": program.key}))
        for machine in self.machines:
            guardian = machine.guardian
            just_woken = machine.frozen or self.time.now < machine.woken_t + LOOK_S + 0.1
            if machine is program.machine or just_woken or guardian is None or guardian.dead or guardian.stopped:
                continue
            twins = [one for one in machine.programs.values() if one.key == program.key and one is not program]
            assert not twins, f"{program.key} runs on node{machine.number} and on node{program.machine.number}"

    def applied(self, server: Pserver, attempts: Mapping[int, int]) -> str:
        """Return the name of a model after a step. What a process does whose place others have taken never counts."""
        content = repr((server.model, *attempts)).encode()
        name = hashlib.sha256(content).hexdigest()[:16]
        self.models[name] = (server.model, tuple(attempts.items()))
        if self._is_current(server):
            for rank, attempt in attempts.items():
                assert attempt >= self._newest.get((server.key[1], rank), 0), f"an old attempt of trainer {rank} counts"
                self._newest[server.key[1], rank] = attempt
        return name

    def _is_current(self, server: Pserver) -> bool:
        lead = self.lead
        return lead is not None and lead._table.attempts[server.key] == server.attempt

    def wrote(self, action: WriteManifest) -> None:
        """All pieces of a complete save are of one model, unless a trainer was given up between two pushes."""
        models = {receipt["sha256"] for receipt in action.receipts}
        assert len(models) == 1 or self._may_shrink, f"{action.tag} is of several models: {models}"
        assert len({receipt["file"] for receipt in action.receipts}) == self.specs[0].training.pservers
        self.copies.update({(action.tag, receipt["file"]): set() for receipt in action.receipts})
        self._copied.discard(action.tag)
        if action.tag == MODEL:
            self.result = action.receipts[0]["sha256"].lstrip("0").rjust(16, "0")

    def _check_recovery(self, tag: str) -> None:
        """While a copy of each piece is on a live disk, the newest complete checkpoint is found."""
        detector = self.lead._detector
        here = {node: self.machines[node].disk.pieces for node in detector.here - detector.lost}

        def is_there(receipt: Mapping[str, Any]) -> bool:
            name = receipt["tag"], receipt["file"]
            holders = {receipt["node"], *(self.copies[name] if receipt["tag"] in self._copied else ())}
            return any(name in here.get(node, ()) for node in holders)

        manifests = self.machines[0].disk.manifests
        newest = max((one for one in self._kept & manifests.keys() if all(map(is_there, manifests[one]))), default="")
        assert tag >= newest, f"{tag or 'none'} was chosen, and {newest} is whole"
        self._kept = {one for one in self._kept if one <= tag}  # what came after it never happened

    def check_end(self) -> None:
        """After the end nothing runs, and a run that has succeeded has made the model of an undisturbed one."""
        ends = [event for _, number, event in self.events if number == 0 and event["event"] == "ended"]
        assert len(ends) <= 1
        for machine in self.machines:
            if machine.guardian is not None and machine.guardian.was_killed:
                continue
            assert not machine.programs, f"node{machine.number} runs {[one.key for one in machine.programs.values()]}"
        if ends and ends[0]["state"] == "succeeded":
            model, steps = self.result, 0
            while model:
                before, attempts = self.models[model]
                assert len(attempts) == self.specs[0].training.trainers or self._may_shrink, attempts
                model, steps = before, steps + 1
            assert steps == STEPS
