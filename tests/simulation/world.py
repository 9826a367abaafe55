"""A simulated cluster: its machines, and the runs of a job on them."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.agent.lead.lease import LOOK_S
from clusterctl.agent.supervisor.supervisor import Supervisor
from clusterctl.common.paths import JobPaths
from clusterctl.common.run_spec import LeadAddress, RunSpec
from clusterctl.config import Host, Settings, from_values
from clusterctl.inventory import build
from clusterctl.launch import plan
from simulation.agents import Sshd
from simulation.blocking import Blocking
from simulation.disk import StoredRun
from simulation.keepers import KeeperProcess
from simulation.machine import EPOCH, LEAD_PORT, Loop, Machine, SupervisorProcess
from simulation.network import Network
from simulation.program import Program, Pserver
from simulation.run import SimulatedRun
from simulation.time import Time

NODE_GRACE_S, GRACE_S, HEARTBEAT_S = 5.0, 1.0, 1.0
RATES = (1.0, 1.0005, 0.9995)  # NTP corrects a clock by at most 500 ppm
JOB = "JOB20261121-081530"
FIRST_RUN = "0001"


@functools.cache
def planned(
    nodes: int, pservers: int, trainers: int, spares: int, copies: int, restarts: int, loss: tuple[str, str]
) -> tuple[Settings, tuple[RunSpec, ...]]:
    """Return the settings of a job, and the specs of its first run by node. `loss`: ON_NODE_LOSS, ON_TRAINER_LOSS."""
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
        "run": FIRST_RUN,
        "addresses": {number: f"host{number}" for number in ids},
        "machines": {number: str(number) for number in ids},
        "cores": dict.fromkeys(ids, 4),
    }
    lead = LeadAddress(host="host0", port=LEAD_PORT)
    specs = (launch.spec(node, **facts, lead=lead if node.id else None) for node in launch.nodes)
    return settings, tuple(spec.replace(t=EPOCH) for spec in specs)


class World:
    """The first machines are the nodes of the job with these `settings`, `others` have nothing to do with it."""

    job = JOB

    def __init__(self, lot: random.Random, settings: Settings, specs: tuple[RunSpec, ...], others: int) -> None:
        self.lot = lot
        self.time = Time()
        self.network = Network(self.time, lot)
        self.settings = settings
        self.specs = specs
        self.current: Machine | None = None
        self.thread: Blocking | None = None  # the one that runs
        self.threads: list[Blocking] = []
        self.servers: dict[str, Pserver] = {}
        self.runs: dict[str, SimulatedRun] = {}
        self.models: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {"": ("", ())}
        self.events: list[tuple[float, int, Mapping[str, Any]]] = []
        self.keepers: list[KeeperProcess] = []
        self._keys = itertools.count()
        self.machines = [Machine(self, number, lot.choice(RATES)) for number in range(len(specs) + others)]
        self.network.machines = self.machines

    @property
    def nodes(self) -> list[Machine]:
        return self.machines[: len(self.specs)]

    @property
    def here(self) -> Machine:
        """The machine whose process is running."""
        assert self.current is not None
        return self.current

    @property
    def is_over(self) -> bool:
        return all(machine.supervisor is None for machine in self.machines)

    def new_key(self) -> str:
        return f"{next(self._keys):040d}"

    def begin(self) -> None:
        """Start the supervisors of the first run, as a start leaves them."""
        for machine, spec in zip(self.nodes, self.specs, strict=True):
            machine.disk.runs[spec.run] = StoredRun(spec)
            self.booted(machine)
            self.begins(machine, spec)
        for machine, spec in zip(self.nodes, self.specs, strict=True):
            SupervisorProcess(machine, spec)

    def begins(self, machine: Machine, spec: RunSpec) -> None:
        """Prepare a machine for its part of a run."""
        if spec.leads:
            assert spec.run not in self.runs, f"run {spec.run} has begun twice"
            self._check_resume(spec)
            self.runs[spec.run] = SimulatedRun(self, spec)
            self.tell(machine, {"event": "run", "run": spec.run})
        machine.keys = {process.name: self.new_key() for process in spec.processes}

    def _check_resume(self, spec: RunSpec) -> None:
        """No run continues one of which most nodes know that it has succeeded, has failed, or was stopped.

        It goes on from the newest complete checkpoint of which its nodes have a copy of each piece.
        """
        for run in self.runs:
            final = sum(machine.disk.runs[run].is_final for machine in self.nodes if run in machine.disk.runs)
            assert 2 * final <= len(self.nodes), f"run {spec.run} continues {run}, which is over on {final} nodes"
        chosen = (spec.saving.resume.run, spec.saving.resume.tag) if spec.saving.resume else ("", "")
        disks = [self.machines[node].disk for node in spec.members]
        for run in self.runs:
            there = [disk.runs[run] for disk in disks if run in disk.runs]
            for manifest in (known for one in there for known in (*one.manifests.values(), *one.copies.values())):
                is_whole = all(any(one.has(manifest["tag"], file) for one in there) for file in manifest["files"])
                if manifest.get("checkpoint") and is_whole:
                    newest = (run, manifest["tag"])
                    assert chosen >= newest, f"run {spec.run} resumes from {chosen}, and {newest} is whole"

    def booted(self, machine: Machine) -> None:
        if machine in self.nodes:
            Sshd(machine)

    def keep(self, machine: Machine) -> None:
        """Start a keeper on a machine."""
        self.keepers.append(KeeperProcess(machine, self.settings))

    def make_supervisor(self, machine: Machine, spec: RunSpec, loop: Loop, *, new: bool) -> Supervisor:
        run = JobPaths(Path(f"/simulated/{machine.number}/{JOB}")).run(spec.run)
        return Supervisor(run, spec, -1, loop, new=new)

    def write_spec(self, path: Path, content: Any) -> None:
        """Stands in for the writing of runs/RUN/spec.json."""
        self.here.disk.runs[path.parent.name].spec = RunSpec.from_json(content)

    def manifest_bytes(self, directory: Path) -> bytes:
        """Stands in for the reading of runs/RUN/checkpoints/TAG/manifest.json."""
        return json.dumps(self.here.disk.runs[directory.parents[1].name].manifests[directory.name]).encode()

    def tell(self, machine: Machine, event: Mapping[str, Any]) -> None:
        self.events.append((self.time.now, machine.number, event))

    def story(self) -> str:
        return "\n".join(f"{t:8.3f} node{number} {event}" for t, number, event in self.events)

    def close(self) -> None:
        for thread in self.threads:
            thread.kill()

    def spawned(self, program: Program) -> None:
        """No process begins while another machine runs it still, or while any runs one of another run.

        Unless no guardian there could have ended it.
        """
        run = program.spec.run
        self.tell(program.machine, {"event": "spawn", "key": program.key, "run": run})
        for machine in self.nodes:
            guardian = machine.guardian
            just_woken = machine.frozen or self.time.now < machine.woken_t + LOOK_S + 0.1
            if machine is program.machine or just_woken or guardian is None or guardian.dead or guardian.stopped:
                continue
            for one in machine.programs.values():
                both = f"{program.key} of run {run} on node{program.machine.number}, {one.key} on node{machine.number}"
                assert one.key != program.key, f"it runs twice: {both}"
                assert one.spec.run == run, f"two runs: {both} is of run {one.spec.run}"

    def check_end(self) -> None:
        """After the end nothing runs, and what has succeeded has made the model of an undisturbed run."""
        for machine in self.machines:
            if machine.guardian is not None and machine.guardian.was_killed:
                continue
            assert not machine.programs, f"node{machine.number} runs {[one.key for one in machine.programs.values()]}"
        for run in self.runs.values():
            run.check_end()
