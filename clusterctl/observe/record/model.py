"""The record of a run as typed values. All times are by the clock of this machine, in seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from clusterctl.cluster.answers import Devices, Resumed
from clusterctl.common.curves import Curve
from clusterctl.common.events import RunWarning
from clusterctl.common.points import Rollback
from clusterctl.common.run_state import ProcessState
from clusterctl.common.safe_json import is_whole
from clusterctl.common.schema import Bound, Count, Moment, Record, SchemaError, at_most, readers, types_of
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.secrets import Redactor

TableCounts = Annotated[dict[str, Any], Bound("the counts of a table", lambda table: _are_counts(**table))]
Ranks = Annotated[list[Count], at_most(4)]
#: A part of `Figures` of its own, since the key is a keyword.
PassFigure = TypedDict("PassFigure", {"pass": Count}, total=False)


class OccasionalFigures(TypedDict, total=False):
    """Figures that not every process has, or not all the time."""

    apply_s: float  # seconds that a pserver spent applying updates in about the last second
    send_s: float  # seconds that a pserver spent sending replies in about the last second
    passes: Count  # how many a trainer is to do
    gpus: Devices  # that a trainer sees, as CUDA_VISIBLE_DEVICES names them
    gpu_memory: Count  # bytes that a trainer has on them
    awaits: Ranks  # of pserver 0 in sync mode: the first 4 trainers whose pushes others await for 3 s or more
    awaited: Count  # how many trainers others wait for
    waiting: Count  # how many trainers wait
    awaits_s: Moment  # for how many seconds they have waited


class Figures(PassFigure, OccasionalFigures, total=False):
    """The newest figures of a process, each missing until it is known."""

    step: Count
    loss: float
    samples_per_s: float
    compute: float  # a share of a trainer's time, as are `wait` and `wire`
    wait: float
    wire: float
    cpu: float  # in cores
    memory: Count  # bytes
    values: dict[str, float]  # the program's own metrics by name
    started: Moment
    staleness: list[tuple[Count, Count]]  # of a pserver: pairs (staleness, pushes)
    tables: list[TableCounts]  # of a pserver: the counts of each sparse table
    lost: Count  # of a pserver: pushes that were lost


FIGURES = tuple(types_of(Figures))
#: Those that hold only until the next report.
PASSING = ("awaits", "awaited", "waiting", "awaits_s")


def figure(name: str, value: object) -> Any:
    """Return a figure that a process reports about itself, or None if it is malformed."""
    try:
        return readers(Figures)[name](value)
    except SchemaError:
        return None


def _are_counts(name: object = None, **counts: object) -> bool:
    return isinstance(name, str) and all(map(is_whole, counts.values()))


class Span(NamedTuple):
    """A time during which a process was in one state, such as "starting", "running" or "stalled".

    `end` is None if it still is. `attempt` counts its starts from 1.
    """

    state: str
    begin: float
    end: float | None
    attempt: int


class TimedLine(NamedTuple):
    """A line of a log, and its time."""

    t: float
    text: str


@dataclass
class ProcessRecord(ProcessState):
    """A process of the run on `node`. `spans` and `tail`, its last log lines, are only in the history of a run."""

    _: KW_ONLY
    node: Node
    pid: int | None = None
    figures: Figures = field(default_factory=Figures)
    spans: tuple[Span, ...] = ()
    tail: tuple[TimedLine, ...] = ()

    @property
    def name(self) -> str:
        """`trainer0`."""
        return f"{self.role}{self.rank}"

    @property
    def label(self) -> str:
        """`trainer0@node3`."""
        return f"{self.name}@{self.node.label}"

    def take_figures(self, values: Mapping[str, Any]) -> None:
        """Take the figures among `values`, which the process reported itself; malformed ones are dropped."""
        known = {name: figure(name, values.get(name)) for name in FIGURES}
        self.figures.update({name: value for name, value in known.items() if value is not None})  # type: ignore[typeddict-item]

    def forget_passing(self) -> None:
        """Drop the figures that hold only until the next report."""
        for name in PASSING:
            self.figures.pop(name, None)  # type: ignore[misc]


@dataclass(frozen=True)
class Mark:
    """A moment in the run. `kind` is the name of the event; `text` describes it without the process or the node."""

    t: float
    kind: str
    text: str
    node: int | None = None
    role: str | None = None
    rank: int | None = None

    @property
    def subject(self) -> str:
        """The process or the node: `trainer0@node3`, `node3`, or empty for the whole run."""
        if self.role is not None:
            return f"{self.role}{self.rank}@node{self.node}"
        return "" if self.node is None else f"node{self.node}"

    @property
    def line(self) -> str:
        """The subject and the text."""
        return " ".join(filter(None, (self.subject, self.text)))


@dataclass(frozen=True)
class NodeRecord:
    """A node of the run. `offset_s` is our clock minus its clock, +-`margin_s`; `versions` by name, such as "numpy".

    If it did not answer, `problem` is the reason.
    """

    node: Node
    state: str
    offset_s: float | None = None
    margin_s: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class CauseRecord:
    """The first cause of a run's end, as `clusterctl why` names it: the headline, evidence, notes and advice."""

    t: float
    headline: str
    lines: tuple[TimedLine, ...] = ()
    notes: tuple[str, ...] = ()
    advice: str | None = None
    node: int | None = None
    role: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class MetricValues(Record):
    """A metric of the program, as the mean of all trainers: of their last values, and of the best of each.

    NaN and infinity are never the best; `best` is None if a trainer has logged nothing else.
    """

    last: float
    best: float | None


@dataclass(frozen=True)
class RunOverview(Record):
    """A run in the list of jobs. `loss` is the mean of the trainers' last losses. Secrets in arguments are hidden."""

    run: str
    state: str
    warnings: Sequence[RunWarning] = ()
    name: str | None = None
    arguments: tuple[str, ...] = ()
    seconds: float | None = None
    loss: float | None = None
    metrics: Mapping[str, MetricValues] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all that is known."""
        return {key: value for key, value in super().to_json().items() if value not in (None, [], {})}


@dataclass(frozen=True)
class JobOverview(Record):
    """A job in the list of jobs, and its `runs`, oldest first; `nodes` have it. It was dispatched at `t`."""

    job: str
    state: str
    runs: tuple[RunOverview, ...]
    workspace: str
    content: str  # the same for identical workspaces
    files: int
    bytes: int
    t: float  # seconds since 1970
    nodes: tuple[int, ...]  # ids

    @property
    def newest(self) -> RunOverview | None:
        return self.runs[-1] if self.runs else None


@dataclass(frozen=True)
class RunRecord:
    """The history of a run. Values of ENV and of secrets are hidden in every text.

    `settings` are the settings of the run as text, `env` the names of the variables in ENV. `ended_t` is None while the
    run continues. `saved` are the complete models, oldest first. `secrets` hides them in further texts. `label` is the
    name given with `start --name`.
    """

    job: str
    run: str
    members: Members
    state: str
    mode: str | None
    started_t: float | None
    ended_t: float | None
    read_t: float
    processes: tuple[ProcessRecord, ...]
    nodes: tuple[NodeRecord, ...]
    curves: tuple[Curve, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    marks: tuple[Mark, ...] = ()
    cause: CauseRecord | None = None
    warnings: Sequence[RunWarning] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    workspace: str | None = None
    resumed: Resumed | None = None
    saved: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    secrets: Redactor = field(default_factory=Redactor, repr=False, compare=False)
    label: str | None = None

    @property
    def name(self) -> str:
        """`JOB20261121-081530 run 1`."""
        return f"{self.job} run {int(self.run)}"

    @property
    def duration_s(self) -> float | None:
        """How long the run took, or has taken so far; None if that is unknown."""
        if self.started_t is None:
            return None
        return max(0.0, (self.ended_t or self.read_t) - self.started_t)

    @property
    def is_live(self) -> bool:
        return self.state in ("starting", "running")

    @cached_property
    def trainers(self) -> tuple[ProcessRecord, ...]:
        return tuple(process for process in self.processes if process.role == "trainer")

    @cached_property
    def pservers(self) -> tuple[ProcessRecord, ...]:
        return tuple(process for process in self.processes if process.role == "pserver")

    @property
    def silent(self) -> tuple[NodeRecord, ...]:
        """The nodes that did not answer."""
        return tuple(node for node in self.nodes if node.problem is not None)

    def find(self, of: str, name: str, *, role: str | None = None, undone: bool = False) -> Iterator[Curve]:
        """Yield the curves of one figure, one per process."""
        for curve in self.curves:
            if (curve.of, curve.name, curve.undone) == (of, name, undone) and role in (None, curve.role):
                yield curve

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of the program's own metrics, in order of their first point."""
        first: dict[str, float] = {}
        for curve in self.curves:
            if curve.of == "log" and curve.buckets:
                first[curve.name] = min(first.get(curve.name, curve.buckets[0].t0), curve.buckets[0].t0)
        return tuple(sorted(first, key=lambda name: (first[name], name)))

    def newest(self, name: Literal["pass", "step"]) -> int | None:
        """Return the highest pass or step that a trainer reported last."""
        return max((one.figures[name] for one in self.trainers if name in one.figures), default=None)

    def process(self, role: str | None, rank: int | None) -> ProcessRecord | None:
        return next((one for one in self.processes if (one.role, one.rank) == (role, rank)), None)
