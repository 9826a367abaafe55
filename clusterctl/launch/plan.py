"""The launch plan: which process runs where, with which command and environment. A pure function of the settings.

A node's part of the plan, completed by facts known only at the start, becomes the spec of a run
(`runs/0001/spec.json`). `start --plan` prints the plan itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.common.engines import ENGINES, ports_of
from clusterctl.common.modes import SaveInterval
from clusterctl.common.process_environment import LaunchFacts, environment
from clusterctl.common.run_spec import (
    Failures,
    Gpus,
    KeepBest,
    LeadAddress,
    LeftOut,
    Limits,
    PieceSources,
    PlacedProcess,
    Ports,
    ProcessSpec,
    ResumePoint,
    RunSpec,
    Saving,
    Timing,
    Training,
)
from clusterctl.config import Settings
from clusterctl.config.declarations import BY_SPELLING, NOT_RECORDED
from clusterctl.documents.jobs import ProcessPlan
from clusterctl.errors import ConfigError, NodeError, RefusedError
from clusterctl.inventory import Inventory, Node, among, nodeset


def copy_plan(
    originals: Sequence[int], members: Sequence[int], machines: Mapping[int, str], copies: int
) -> dict[str, tuple[int, ...]]:
    """Return, for each node that copies, the nodes whose pieces it copies.

    The pieces of each of the nodes `originals` go to the next members on other machines, so that there are `copies` of
    them with the original. If there are too few machines, as in a fake cluster, other nodes of a machine take them.
    """
    plan: dict[str, tuple[int, ...]] = {}
    for node in originals:
        for holder in _holders(node, members, machines)[: copies - 1]:
            plan[str(holder)] = (*plan.get(str(holder), ()), node)
    return plan


def _holders(node: int, members: Sequence[int], machines: Mapping[int, str]) -> list[int]:
    """Return the other members in the order in which they are to hold copies: one of each other machine first."""
    at = list(members).index(node)
    following = [*members[at + 1 :], *members[:at]]
    used, first = {machines[node]}, []
    for other in following:
        if machines[other] not in used:
            used.add(machines[other])
            first.append(other)
    return first + [other for other in following if other not in first]


GENERIC_PSERVER = ("python", "-m", "clusterctl.runtime.pserver")
OUR_ENGINE = "clusterctl"


@dataclass(frozen=True)
class PlannedProcess:
    """One process of the plan. `index` counts a role's processes on the node; `ours`: it uses our control protocol."""

    node: int
    role: str
    rank: int
    index: int
    argv: tuple[str, ...]
    ours: bool

    @property
    def spec(self) -> ProcessSpec:
        """The process in the form of its node's spec."""
        return ProcessSpec(role=self.role, rank=self.rank, index=self.index, argv=self.argv, ours=self.ours)


@dataclass(frozen=True)
class LaunchPlan:
    """The processes of a run. `nodes` are its members, with their ranks in this plan; the first one leads.

    `program_args` is None if none were given: a resumed run takes those of the run before. `name` is that of the run.
    `cwd` is the directory in which processes begin, if that is not the job directory.
    """

    settings: Settings
    inventory: Inventory
    nodes: tuple[Node, ...]
    program_args: tuple[str, ...] | None
    processes: tuple[PlannedProcess, ...]
    name: str | None = None
    cwd: str | None = None

    @property
    def needs_runtime(self) -> bool:
        """True if nodes need numpy and pyzmq."""
        return self.settings.engine == OUR_ENGINE

    @property
    def seals_streams(self) -> bool:
        """True if trainers and pservers of different nodes encrypt what they send to each other."""
        return self.needs_runtime and len(self.nodes) > 1 and self.settings.ps_security == "curve"

    @property
    def wants_one_pserver_port(self) -> bool:
        """True if pservers are the user's programs, and the engine gives trainers no other list of their ports."""
        engine = ENGINES[self.settings.engine]
        return self.settings.pserver_command is not None and not (engine.serves or engine.listens)

    def count(self, role: str) -> int:
        return sum(process.role == role for process in self.processes)

    def on(self, node: Node) -> list[PlannedProcess]:
        return [process for process in self.processes if process.node == node.id]

    def with_arguments(self, program_args: Sequence[str]) -> LaunchPlan:
        part = _place(self.settings, self.inventory, self.nodes, tuple(program_args))
        return replace(part, name=self.name, cwd=self.cwd)

    def among(self, ids: Collection[int]) -> LaunchPlan:
        """Return the plan for these nodes only, with new ranks. Raises NodeError if a role has no process left."""
        part = _place(self.settings, self.inventory, among(self.inventory, ids), self.program_args)
        for role in ("pserver", "trainer"):
            if self.count(role) and not part.count(role):
                raise NodeError(f"the run would have no {role}: conf.py places none on {nodeset(ids)}")
        return replace(part, name=self.name, cwd=self.cwd)

    def spec(
        self,
        node: Node,
        *,
        job: str,
        run: str,
        addresses: dict[int, str],
        lead: LeadAddress | None,
        left_out: Sequence[LeftOut] = (),
        resume: ResumePoint | None = None,
        load: str | None = None,
        sources: PieceSources | None = None,
        sharing: int | None = None,
        by: str | None = None,
        pserver_port: int | None = None,
        machines: Mapping[int, str] | None = None,
        gpus: Gpus | None = None,
    ) -> RunSpec:
        """Return the spec that the supervisor of `node` works from.

        `addresses`: those of the members in the cluster, by node id. `left_out`: the nodes that do not take part, and
        why, for later requests. `resume`: the checkpoint that the run resumes from. `load`: the model that it starts
        with. `sources`: the pieces of either one. `sharing`: the processes on the node's machine, if other members are
        on it too. `by`: who starts it. `pserver_port`: free on all nodes. `machines`: the machine of each node.
        `gpus`: what is known of the node's.
        """
        return RunSpec(
            job=job,
            run=run,
            node=node.id,
            name=self.name,
            members=tuple(member.id for member in self.nodes),
            left_out=tuple(left_out),
            address=addresses[node.id],
            pserver_hosts=tuple(addresses[p.node] for p in self.processes if p.role == "pserver"),
            lead=lead,
            training=self._training(),
            ports=self._ports(pserver_port),
            timing=self._timing(),
            saving=self._saving(machines if lead is None else None).replace(resume=resume, load=load, sources=sources),
            limits=Limits(memory_limit_mb=self.settings.memory_limit_mb, open_files=self.settings.open_files),
            failures=self._failures(),
            use_gpu=self.settings.use_gpu,
            ld_library_path=self.settings.ld_library_path,
            env=dict(node.env),
            arguments=self.program_args or (),
            settings=self._chosen() or None,
            processes=tuple(process.spec for process in self.on(node)),
            sharing=sharing,
            by=by,
            hosts=tuple(addresses[node.id] for node in self.nodes) if self._lists_nodes() else None,
            all_processes=tuple(PlacedProcess(role=p.role, rank=p.rank, node=p.node) for p in self.processes),
            cwd=self.cwd,
            gpus=gpus,
        )

    def _lists_nodes(self) -> bool:
        return ENGINES[self.settings.engine].lists_nodes

    def _chosen(self) -> dict[str, str]:
        chosen = {name: text for name, text in self.settings.chosen.items() if name not in NOT_RECORDED}
        return {name: "..." if BY_SPELLING[name].secret else text for name, text in chosen.items()}

    def _training(self) -> Training:
        settings = self.settings
        return Training(
            mode=str(settings.mode),
            seed=settings.seed,
            wire=settings.wire,
            key_cache=settings.key_cache,
            engine=settings.engine,
            security=settings.ps_security,
            trainers=self.count("trainer"),
            pservers=self.count("pserver"),
            trainer_threads=settings.trainer_threads,
        )

    def _ports(self, pserver_port: int | None) -> Ports:
        settings = self.settings
        return Ports(
            port=settings.port,
            ports_num=settings.ports_num,
            ports_num_for_sparse=settings.ports_num_for_sparse,
            pserver_port=pserver_port,
        )

    def _timing(self) -> Timing:
        settings = self.settings
        return Timing(heartbeat_s=settings.heartbeat_s, node_grace_s=settings.node_grace_s, grace_s=settings.grace_s)

    def _saving(self, machines: Mapping[int, str] | None) -> Saving:
        """Return the entry of a spec; with `machines` that of the lead."""
        best = self.settings.keep_best
        copies, limit_mb = None, None
        ours = self.count("pserver") > 0 and self._restarts_one_by_one()
        if machines is not None and ours:
            originals = sorted({p.node for p in self.processes})
            copies = copy_plan(originals, [node.id for node in self.nodes], machines, self.settings.copies)
            limit_mb = self.settings.model_on_lead_mb
        return Saving(
            checkpoints=True,
            save_every=self.settings.save_every,
            save_model_every=_model_schedule(self.settings.save_model_every),
            keep=self.settings.keep,
            keep_models=self.settings.keep_models,
            server_cuts=True if ours and str(self.settings.mode) != "sync" else None,
            keep_best=KeepBest(name=best.metric, direction=best.direction) if best else None,
            copies_from=copies,
            model_on_lead_mb=limit_mb,
        )

    def _failures(self) -> Failures:
        settings = self.settings
        return Failures(
            restarts=settings.restarts._asdict(),
            on_trainer_loss=settings.on_trainer_loss,
            time_limit_s=settings.time_limit_s,
            stall_s=settings.stall_s,
            on_stall=settings.on_stall,
            on_nan=settings.on_nan,
            whole=not self._restarts_one_by_one(),
            takes_warnings=True,
        )

    def _restarts_one_by_one(self) -> bool:
        """True if one process can restart while the others keep running: they must all use our pservers."""
        return self.settings.engine == OUR_ENGINE and all(p.ours for p in self.processes if p.role != "trainer")

    def describe(self, job: str) -> list[ProcessPlan]:
        """Describe every process with its command and environment; placeholders stand for values set at the start."""
        nodes = {node.id: node for node in self.nodes}
        addresses = {node.id: node.address or node.ssh_host for node in self.nodes}
        port = self.settings.port
        endpoints = {
            name: f"{addresses[p.node]}:{port}+{p.index} (chosen at start)"
            for p in self.processes
            for name in {p.spec.name, *ports_of(self.settings.engine, p.spec)}
        }
        pservers = tuple(endpoints[f"pserver{rank}"] for rank in range(self.count("pserver")))
        described: list[ProcessPlan] = []
        for process in self.processes:
            node = nodes[process.node]
            job_dir = f"{node.root_dir}/{job}"
            lib_dir = f"{node.root_dir}/.clusterctl/lib/..."
            known = () if process.role == "pserver" and process.ours else pservers
            facts = LaunchFacts(job_dir, lib_dir, 1, known, "(chosen at start)", {}, endpoints)
            spec = self.spec(
                node, job=job, run="(chosen at start)", addresses=addresses, lead=None, gpus=_named_gpus(node)
            )
            env = environment(spec, process.spec, facts)
            shares = len(self.on(node)) * (self.settings.trainer_threads if process.role == "trainer" else 1)
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                if name not in node.env:
                    env[name] = f"(cores of {node.label} / {shares})"
            described.append(
                {
                    "node": node.id,
                    "host": node.where,
                    "role": process.role,
                    "rank": process.rank,
                    "argv": list(process.argv),
                    "cwd": self.cwd or job_dir,
                    "env": env,
                }
            )
        return described


def plan(
    settings: Settings,
    inventory: Inventory,
    program_args: Sequence[str] | None = None,
    *,
    name: str | None = None,
    cwd: str | None = None,
) -> LaunchPlan:
    """Place every process. `program_args` go to the training program. Raises ConfigError if no trainer would run."""
    given = None if program_args is None else tuple(program_args)
    whole = _place(settings, inventory, inventory.nodes, given)
    if not whole.count("trainer"):
        raise ConfigError("no host runs a trainer", hint="set TRAINERS or Host(roles=...) in conf.py")
    return replace(whole, name=name, cwd=cwd)


def require_our_pservers(settings: Settings, option: str, hint: str | None = None) -> None:
    """Raise RefusedError if the run has other parameter servers than ours."""
    if settings.engine != OUR_ENGINE or settings.pserver_command is not None:
        raise RefusedError(
            f"{option} works with the built-in parameter server only: other programs keep their own models and "
            "checkpoints",
            hint=hint,
        )


def _place(
    settings: Settings, inventory: Inventory, nodes: tuple[Node, ...], program_args: tuple[str, ...] | None
) -> LaunchPlan:
    engine = ENGINES[settings.engine]
    trainer = (*settings.trainer_command, *(program_args or ()))
    server = settings.pserver_command or (GENERIC_PSERVER if settings.engine == OUR_ENGINE else None)
    if server is None and engine.serves:
        server = trainer
    if server is None:
        nodes = tuple(replace(node, pserver_ranks=()) for node in nodes)
    processes = []
    if engine.scheduled:
        processes.append(
            PlannedProcess(nodes[0].id, "scheduler", 0, 0, _command(server or trainer, settings.python), False)
        )
    for node in nodes:
        if server is not None:
            generic = settings.engine == OUR_ENGINE and settings.pserver_command is None
            argv = _command(server, settings.python)
            processes += [
                PlannedProcess(node.id, "pserver", r, i, argv, generic) for i, r in enumerate(node.pserver_ranks)
            ]
        argv = _command(trainer, settings.python)
        processes += [PlannedProcess(node.id, "trainer", r, i, argv, False) for i, r in enumerate(node.trainer_ranks)]
    return LaunchPlan(settings, inventory, nodes, program_args, tuple(processes))


def _named_gpus(node: Node) -> Gpus | None:
    """Return the GPUs that conf.py names; None if the node is to find them."""
    limit = node.host.gpus
    return None if limit is None else Gpus(limit=limit, devices=tuple(map(str, range(limit))))


def _model_schedule(every: SaveInterval | None) -> SaveInterval | None:
    """Return the schedule of models; None for the default, the end of every pass."""
    if every is None:
        return SaveInterval("end", 0)
    return None if (every.unit, every.n) == ("pass", 1) else every


def _command(argv: Sequence[str], python: str) -> tuple[str, ...]:
    """Replace a leading `python` with the nodes' interpreter."""
    return (python, *argv[1:]) if argv[0] == "python" else tuple(argv)
