"""The spec of a run: all values that one node's part of the run depends on.

The control machine makes one for every node (`LaunchPlan.spec`), the node keeps it in `runs/RUN/spec.json`, and its
supervisor rewrites it at each new epoch. The keys are a contract between versions: a supervisor may run beside older
ones, and a newer one may join the run. So unknown keys are kept, and a missing key means the default declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.common.modes import SaveInterval
from clusterctl.common.schema import FieldGroup, Record


@dataclass(frozen=True)
class LeftOut(Record):
    """A node of conf.py that does not take part, and why."""

    node: int
    message: str


@dataclass(frozen=True)
class LeadAddress(Record):
    """The address at which the lead listens."""

    host: str
    port: int


@dataclass(frozen=True)
class KeepBest(Record):
    """The metric whose best checkpoint is kept: the one with its highest ("max") or lowest ("min") value."""

    name: str
    direction: str

    def __str__(self) -> str:
        return f"{self.name}:{self.direction}"


@dataclass(frozen=True)
class ResumePoint(Record):
    """The checkpoint of an earlier run, perhaps of another `job`, from which this run started.

    `dir` is relative to the job directory.
    """

    OMITTED = ("job",)

    run: str
    tag: str
    step: int
    pass_: int
    dir: str
    job: str | None = None


@dataclass(frozen=True)
class PieceSource(Record):
    """A file of a save, and the nodes that have a copy."""

    file: str
    bytes: int
    sha256: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class PieceSources(Record):
    """The files of a save that this node's processes read, from its disk or from other nodes of the run.

    `run` is the run that wrote them, or that took them over.
    """

    job: str
    run: str
    tag: str
    pieces: tuple[PieceSource, ...]

    @property
    def name(self) -> str:
        """The name in messages, and of this model where a path of one may be given."""
        return f"{self.tag} of {self.job} run {int(self.run)}"


@dataclass(frozen=True)
class Recovery(Record):
    """The checkpoint to which the run was rolled back; `tag` is None if there was none.

    `left` are the trainers that had left the run by then, and the step of each at which it left. `sources` are its
    files and the nodes that have them, if processes have moved.
    """

    OMITTED = ("sources",)

    tag: str | None
    step: int
    left: Mapping[str, int] = field(default_factory=dict)
    sources: PieceSources | None = None


@dataclass(frozen=True)
class ProcessSpec(Record):
    """A process of this node. `index` counts a role's processes on the node; `ours` speaks our control protocol."""

    role: str
    rank: int
    index: int
    argv: tuple[str, ...] = ()
    ours: bool = False

    @property
    def name(self) -> str:
        """`trainer0`: the process in endpoints and messages."""
        return f"{self.role}{self.rank}"


@dataclass(frozen=True)
class PlacedProcess(Record):
    """A process of any node."""

    role: str
    rank: int
    node: int


@dataclass(frozen=True)
class Program(Record):
    """The program of a role, the same on every node. `ours`: it speaks our control protocol."""

    argv: tuple[str, ...]
    ours: bool = False


@dataclass(frozen=True)
class MemberPlace(Record):
    """What a member may run when another one is lost: the `roles` it allows; if trainers use GPUs, no more of them than
    it has `gpus`; if data is sharded, only the trainers whose `shards` it has. Nodes on one `machine` fail together.
    """

    OMITTED = ("gpus", "machine", "shards")

    node: int
    roles: tuple[str, ...]
    cores: int = 1
    machine: str | None = None
    gpus: int | None = None
    shards: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ShardCopies(Record):
    """The trainers of other nodes whose shards a node has copies of, and the `patterns` of all shards (SHARDS)."""

    patterns: tuple[str, ...]
    trainers: tuple[int, ...]


@dataclass(frozen=True)
class Training(FieldGroup):
    """The training mode, the number of processes in the whole run, and the threads that a trainer's program uses."""

    OMITTED = ("trainer_threads",)

    mode: str = "sync"
    seed: int = 0
    wire: str = "float32"
    key_cache: bool = False
    engine: str = "clusterctl"
    security: str = "curve"
    trainers: int = 0
    pservers: int = 0
    trainer_threads: int | None = None


@dataclass(frozen=True)
class Ports(FieldGroup):
    """The first port to try, and the number of ports that a pserver has for dense and for sparse tables.

    `pserver_port` was free on all nodes for pservers that are the user's own programs.
    """

    OMITTED = ("pserver_port",)

    port: int = 7164
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    pserver_port: int | None = None


@dataclass(frozen=True)
class Timing(FieldGroup):
    """Seconds between heartbeats, until a silent node counts as lost, and from TERM to KILL."""

    heartbeat_s: float = 1.0
    node_grace_s: float = 30.0
    grace_s: float = 10.0


@dataclass(frozen=True)
class Saving(FieldGroup):
    """The source of initial values, the schedules of checkpoints and models, their retention and their copies.

    `sources` are the pieces of the model that `load` names, or of the checkpoint to resume from if a node lacks some of
    those that it needs. Without `save_model_every` a model is saved at the end of every pass. `server_cuts` is there
    outside sync: nodes of earlier versions refuse to rejoin without it. The lead's spec has in `copies_from`, for each
    node, the nodes whose pieces it copies, in `copies` their number with the original, if processes can move, and in
    `model_on_lead_mb` the largest model that it merges.
    """

    OMITTED = ("save_model_every", "keep_models", "server_cuts", "sources", "copies_from", "copies", "model_on_lead_mb")

    load: str | None = None
    checkpoints: bool = False
    save_every: SaveInterval | None = None
    save_model_every: SaveInterval | None = None
    keep: int = 3
    keep_models: int | None = None
    server_cuts: bool | None = None
    keep_best: KeepBest | None = None
    resume: ResumePoint | None = None
    sources: PieceSources | None = None
    copies_from: Mapping[str, tuple[int, ...]] | None = None
    copies: int | None = None
    model_on_lead_mb: int | None = None


@dataclass(frozen=True)
class Limits(FieldGroup):
    """The limits of each process; None sets no limit."""

    memory_limit_mb: int | None = None
    open_files: int | None = None


@dataclass(frozen=True)
class Failures(FieldGroup):
    """The policy for failures: restarts per hour by role, and the settings of the same names.

    `whole` means that processes can only be restarted together. The lead `takes_warnings` of processes, unless it is of
    an older version.
    """

    OMITTED = ("takes_warnings", "on_node_loss")

    restarts: Mapping[str, int] = field(default_factory=dict)
    on_trainer_loss: str = "fail"
    on_node_loss: str | None = None
    time_limit_s: float | None = None
    stall_s: float = 600.0
    on_stall: str = "warn"
    on_nan: str = "warn"
    whole: bool = False
    takes_warnings: bool | None = None

    @property
    def node_loss(self) -> str:
        """The reaction to the loss of a node: "fail", "wait" or "move". In older specs ON_TRAINER_LOSS decides."""
        return self.on_node_loss or ("wait" if self.on_trainer_loss == "wait" else "fail")


@dataclass(frozen=True)
class Gpus(Record):
    """The GPUs of a node, and how they are dealt to its trainers.

    `limit` is their number according to conf.py. The node adds `devices`, as CUDA_VISIBLE_DEVICES names them. If nodes
    share them, they are dealt in `shares`, and those of this node's trainers begin with `first`.
    """

    OMITTED = ("limit", "devices", "first", "shares")

    limit: int | None = None
    devices: tuple[str, ...] | None = None
    first: int | None = None
    shares: int | None = None


@dataclass(frozen=True)
class RunSpec(Record):
    """The spec of a run for the node `node`; immutable.

    `members` are the nodes that take part, the lead first; `lead` is None on the lead's own node. `address` and
    `pserver_hosts` (by rank) are addresses within the cluster. `name` was given with `start --name`. The node adds
    `venv`, the directory of its Python environment if it has one, the `versions` of its interpreter, and `t`, the time
    at which it prepared the run. The lead adds `epoch` and `recover` when processes are restarted. `sharing` is the
    number of processes on the node's machine, if other nodes of the run are on it too. `by` is who started it, as
    USER@HOST. `hosts` are the addresses of the members, for engines whose programs get a list of them. `settings` has
    the text of each setting that was given with `--set`. `shm` and `streams` are "off" in benchmarks. `cwd` is the
    directory in which processes begin, if that is not the job directory. `gpus` is there if conf.py or the node names
    any. `programs` are what each role runs, so that any process can start on this node, and `shard_copies` the data for
    it; the lead has in `places` what the members may run, and in `resumes` how the run was lost that a keeper continues
    with this one.
    """

    OMITTED = (
        "name",
        "settings",
        "sharing",
        "by",
        "hosts",
        "venv",
        "versions",
        "t",
        "recover",
        "shm",
        "streams",
        "cwd",
        "gpus",
        "programs",
        "shard_copies",
        "places",
        "resumes",
    )

    job: str
    run: str
    node: int
    v: int = 1
    name: str | None = None
    members: tuple[int, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    address: str = ""
    pserver_hosts: tuple[str, ...] = ()
    lead: LeadAddress | None = None
    training: Training = Training()
    ports: Ports = Ports()
    timing: Timing = Timing()
    saving: Saving = Saving()
    limits: Limits = Limits()
    failures: Failures = Failures()
    use_gpu: bool = False
    ld_library_path: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    processes: tuple[ProcessSpec, ...] = ()
    epoch: int = 0
    all_processes: tuple[PlacedProcess, ...] = ()
    sharing: int | None = None
    by: str | None = None
    hosts: tuple[str, ...] | None = None
    venv: str | None = None
    versions: Mapping[str, str] | None = None
    t: float | None = None
    recover: Recovery | None = None
    shm: str | None = None
    streams: str | None = None
    cwd: str | None = None
    gpus: Gpus | None = None
    programs: Mapping[str, Program] | None = None
    shard_copies: ShardCopies | None = None
    places: tuple[MemberPlace, ...] | None = None
    resumes: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"v": self.v, **super().to_json()}

    def with_moved(self, moved: Mapping[str, int]) -> RunSpec:
        """Return the spec after processes have moved, from their nodes by name."""
        placed = tuple(p.replace(node=moved.get(f"{p.role}{p.rank}", p.node)) for p in self.all_processes)
        own = [process for process in self.processes if moved.get(process.name, self.node) == self.node]
        known = {process.name for process in own}
        for process in placed:
            name = f"{process.role}{process.rank}"
            if name in moved and process.node == self.node and name not in known:
                program = (self.programs or {})[process.role]
                index = 1 + max((one.index for one in self.processes if one.role == process.role), default=-1)
                index = max([index, *(one.index + 1 for one in own if one.role == process.role)])
                own.append(ProcessSpec(process.role, process.rank, index, program.argv, program.ours))
        hosts = dict(zip(self.members, self.hosts or ()))
        servers = {p.rank: hosts.get(p.node) for p in placed if p.role == "pserver"}
        pserver_hosts = tuple(servers.get(rank) or host for rank, host in enumerate(self.pserver_hosts))
        return self.replace(processes=tuple(own), all_processes=placed, pserver_hosts=pserver_hosts)

    @property
    def lead_node(self) -> int:
        """The id of the node that leads the run."""
        return self.members[0]

    @property
    def leads(self) -> bool:
        """True if this node leads the run."""
        return self.node == self.lead_node

    @property
    def trains_with_ours(self) -> bool:
        """True if all pservers are ours. Then every trainer connects to them, and leaves the run before it exits."""
        return self.training.pservers > 0 and self.training.engine == "clusterctl" and not self.failures.whole


@dataclass(frozen=True)
class RunSummary(Record):
    """The part of a spec that `status`, `jobs` and `stop` need.

    They read no more than that: the list of all processes of 1,000 nodes takes 2 ms, and a value that only the
    supervisor needs may be damaged.
    """

    node: int
    name: str | None = None
    members: tuple[int, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    training: Training = Training()
    timing: Timing = Timing()
    saving: Saving = Saving()
    by: str | None = None
    t: float | None = None
    gpus: Gpus | None = None
