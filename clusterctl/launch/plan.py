"""The launch plan: which process runs where, with which command and environment. A pure function of the settings.

A node's part of the plan, completed by facts known only at the start, becomes the spec of a run
(`runs/0001/spec.json`). `start --plan` prints the plan itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from clusterctl.common.engines import ENGINES, ports_of
from clusterctl.common.placement import NoPlaceError, copy_plan, holders_of, place, stranded_trainers
from clusterctl.common.process_environment import LaunchFacts, environment
from clusterctl.common.run_spec import (
    Failures,
    Gpus,
    LeadAddress,
    LeftOut,
    Limits,
    MemberPlace,
    PieceSources,
    PlacedProcess,
    Ports,
    ProcessSpec,
    Program,
    ResumePoint,
    RunSpec,
    Saving,
    ShardCopies,
    Timing,
    Training,
)
from clusterctl.config import Settings
from clusterctl.config.settings import BY_SPELLING
from clusterctl.config.values import OUR_ENGINE
from clusterctl.documents.jobs import LossPlan, ProcessPlan
from clusterctl.errors import ConfigError, NodeError, RefusedError
from clusterctl.inventory import Inventory, Node, among, nodeset, places, with_all_processes, with_shard_copies

GENERIC_PSERVER = ("python", "-m", "clusterctl.runtime.pserver")


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
    `cwd` is the directory in which processes begin, if that is not the job directory. `resumes` says how the run was
    lost that a keeper continues with this one.
    """

    settings: Settings
    inventory: Inventory
    nodes: tuple[Node, ...]
    program_args: tuple[str, ...] | None
    processes: tuple[PlannedProcess, ...]
    name: str | None = None
    cwd: str | None = None
    resumes: str | None = None

    @property
    def needs_runtime(self) -> bool:
        """True if nodes need numpy and pyzmq."""
        return self.settings.engine == OUR_ENGINE

    @property
    def seals_streams(self) -> bool:
        """True if trainers and pservers of different nodes encrypt what they send to each other."""
        return self.needs_runtime and len(self.nodes) > 1 and self.settings.ps_security == "curve"

    @property
    def can_be_kept(self) -> bool:
        """True if the run is resumed when it has lost its first node."""
        return self.node_loss == "move" and self._restarts_one_by_one() and self.settings.resumes > 0

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
        return self._with_processes_of(_place(self.settings, self.inventory, self.nodes, tuple(program_args)))

    def among(self, ids: Collection[int]) -> LaunchPlan:
        """Return the plan for these nodes only: with new ranks, or with the processes of the others if these move.

        If the shards of a trainer are on other nodes only, there are new ranks, too. Raises NodeError if a role has no
        process left, or one that moves no place.
        """
        try:
            all_move = self.inventory.places and not self.settings.shards
            nodes = with_all_processes(self.inventory, ids) if all_move else among(self.inventory, ids)
        except NoPlaceError as exc:
            hint = "without the processes of the missing nodes: --set ON_NODE_LOSS=fail"
            raise NodeError(f"not all processes can run on {nodeset(ids)}: {exc}", hint=hint) from exc
        part = _place(self.settings, self.inventory, nodes, self.program_args)
        for role in ("pserver", "trainer"):
            if self.count(role) and not part.count(role):
                raise NodeError(f"the run would have no {role}: conf.py places none on {nodeset(ids)}")
        return self._with_processes_of(part)

    def lacking_copies(self, found: Mapping[int, Collection[int]]) -> list[int]:
        """Return the nodes that do not have all the copies of shards that they should, of those that have answered."""
        return [node.id for node in self.nodes if not {*node.shard_copies} <= {*found.get(node.id, node.shard_copies)}]

    def with_shard_copies(self, found: Mapping[int, Collection[int]]) -> LaunchPlan:
        """Return the plan, given the trainers of whose shards copies were found on each node."""
        here = {node.id: set(node.shard_copies).intersection(found.get(node.id, ())) for node in self.inventory.nodes}
        nodes = with_shard_copies(self.inventory.nodes, here)
        known = places(self.settings, nodes) if self.inventory.places else ()
        inventory = replace(self.inventory, nodes=nodes, places=known)
        return replace(self, inventory=inventory, nodes=with_shard_copies(self.nodes, here))

    def _with_processes_of(self, part: LaunchPlan) -> LaunchPlan:
        return replace(self, nodes=part.nodes, program_args=part.program_args, processes=part.processes)

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
        cores: Mapping[int, int] = MappingProxyType({}),
    ) -> RunSpec:
        """Return the spec that the supervisor of `node` works from.

        `addresses`: those of the members in the cluster, by node id. `left_out`: the nodes that do not take part, and
        why, for later requests. `resume`: the checkpoint that the run resumes from. `load`: the model that it starts
        with. `sources`: the pieces of either one. `sharing`: the processes on the node's machine, if other members are
        on it too. `by`: who starts it. `pserver_port`: free on all nodes. `machines`: the machine of each node.
        `gpus`: what is known of the node's. `cores`: how many each member has.
        """
        moves = self.node_loss == "move"
        return RunSpec(
            job=job,
            run=run,
            node=node.id,
            name=self.name,
            members=tuple(member.id for member in self.nodes),
            left_out=tuple(left_out),
            address=addresses[node.id],
            pserver_hosts=tuple(addresses[node] for _, node in sorted(self._pserver_places())),
            lead=lead,
            training=self._training(),
            ports=Ports(**self.settings.in_spec("ports"), pserver_port=pserver_port),
            timing=Timing(**self.settings.in_spec("timing")),
            saving=self._saving(machines if lead is None else None).replace(resume=resume, load=load, sources=sources),
            limits=Limits(**self.settings.in_spec("limits")),
            failures=self._failures(),
            **self.settings.in_spec(),
            env=dict(node.env),
            arguments=self.program_args or (),
            settings=self._chosen() or None,
            processes=tuple(process.spec for process in self.on(node)),
            sharing=sharing,
            by=by,
            hosts=tuple(addresses[node.id] for node in self.nodes) if self._lists_nodes() or moves else None,
            all_processes=tuple(PlacedProcess(role=p.role, rank=p.rank, node=p.node) for p in self.processes),
            cwd=self.cwd,
            gpus=gpus,
            programs=self._programs() if moves else None,
            shard_copies=ShardCopies(self.settings.shards, node.shard_copies) if moves and node.shard_copies else None,
            places=self._places(cores, machines or {}) if moves and lead is None and machines is not None else None,
            resumes=self.resumes if lead is None else None,
        )

    def _pserver_places(self) -> Iterator[tuple[int, int]]:
        """Yield (rank, node) of each pserver."""
        return ((process.rank, process.node) for process in self.processes if process.role == "pserver")

    def _lists_nodes(self) -> bool:
        return ENGINES[self.settings.engine].lists_nodes

    def _chosen(self) -> dict[str, str]:
        chosen = {name: text for name, text in self.settings.chosen.items() if BY_SPELLING[name].recorded}
        return {name: "..." if BY_SPELLING[name].secret else text for name, text in chosen.items()}

    def _training(self) -> Training:
        counts = {"trainers": self.count("trainer"), "pservers": self.count("pserver")}
        return Training(**{**self.settings.in_spec("training"), **counts})

    def _saving(self, machines: Mapping[int, str] | None) -> Saving:
        """Return the entry of a spec; with `machines` that of the lead."""
        copies, limit_mb = None, None
        ours = self.count("pserver") > 0 and self._restarts_one_by_one()
        if machines is not None and ours:
            copies = self._copies(machines)
            limit_mb = self.settings.model_on_lead_mb
        cuts = True if ours and str(self.settings.mode) != "sync" else None
        values = {**self.settings.in_spec("saving"), "model_on_lead_mb": limit_mb}
        number = self.settings.copies if copies is not None and self.node_loss == "move" else None
        return Saving(checkpoints=True, server_cuts=cuts, copies_from=copies, copies=number, **values)

    def _copies(self, machines: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
        originals = sorted({p.node for p in self.processes})
        return copy_plan(originals, [node.id for node in self.nodes], machines, self.settings.copies)

    def _failures(self) -> Failures:
        values = self.settings.in_spec("failures")
        whole = not self._restarts_one_by_one()
        failures = Failures(**values, whole=whole, takes_warnings=True)
        return failures if failures.node_loss == self.node_loss else failures.replace(on_node_loss=self.node_loss)

    @property
    def node_loss(self) -> str:
        """The reaction to the loss of a node: "move", "wait" or "fail"."""
        return self.inventory.node_loss

    def _places(self, cores: Mapping[int, int], machines: Mapping[int, str]) -> tuple[MemberPlace, ...]:
        """Return what each member may run when another one is lost."""
        return tuple(
            replace(one, cores=cores.get(one.node, 1), machine=machines[one.node])
            for one in places(self.settings, self.nodes)
        )

    def describe_losses(self) -> list[LossPlan]:
        """Describe what would happen if any one node but the first were lost, if processes move.

        Which nodes have most cores, and which are on one machine, is known only at the start.
        """
        if self.node_loss != "move":
            return []
        machines = {node.id: node.ssh_host for node in self.nodes}
        holders = holders_of({int(holder): nodes for holder, nodes in self._copies(machines).items()})
        places = self._places({}, machines)
        node_of = {(process.role, process.rank): process.node for process in self.processes}
        losses: list[LossPlan] = []
        for node in self.nodes[1:]:
            lost = {key for key, home in node_of.items() if home == node.id}
            left = [one for one in places if one.node != node.id]
            stay = stranded_trainers(lost, node_of, left, holders)
            gives_up = [f"{role}{rank}" for role, rank in sorted(stay)]
            try:
                moves = place(lost - stay.keys(), node_of, left, holders)
            except NoPlaceError as exc:
                losses.append({"node": node.id, "fails": str(exc)})
            else:
                plan: LossPlan = {"node": node.id, "moves": {f"{role}{rank}": to for (role, rank), to in moves.items()}}
                losses.append({**plan, "gives_up": gives_up} if stay else plan)
        return losses

    def _programs(self) -> dict[str, Program]:
        """Return what each role runs."""
        return {process.role: Program(process.argv, process.ours) for process in self.processes}

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


def _command(argv: Sequence[str], python: str) -> tuple[str, ...]:
    """Replace a leading `python` with the nodes' interpreter."""
    return (python, *argv[1:]) if argv[0] == "python" else tuple(argv)
