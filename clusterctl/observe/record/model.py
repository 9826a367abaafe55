"""The record of a run as typed values. All times are by the clock of this machine, in seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypedDict

from clusterctl.cluster.answers import Resumed
from clusterctl.cluster.gpu_answers import Devices
from clusterctl.cluster.run_answers import RunWarning
from clusterctl.common.run_state import ProcessState
from clusterctl.common.safe_json import is_whole
from clusterctl.common.schema import Bound, Count, Moment, SchemaError, at_most, readers
from clusterctl.inventory import Node
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.secrets import Redactor

TableCounts = Annotated[dict[str, Any], Bound("the counts of a table", lambda table: _are_counts(**table))]
Ranks = Annotated[list[Count], at_most(4)]
#: The newest figures of a process, each missing until it is known. `cpu` is in cores, `memory` in bytes, `started` a
#: time, `passes` the number that a trainer is to do, and `values` has the program's own metrics by name. `compute`,
#: `wait` and `wire` are shares of a trainer's time. For a pserver, `staleness` are pairs (staleness, pushes), `tables`
#: counts of each sparse table, `lost` pushes that were lost, and `apply_s` and `send_s` seconds of about the last one.
#: While trainers in sync mode wait for others, pserver 0 has `awaits`, the ranks of the first 4 of the `awaited`
#: trainers; `waiting` others have waited for `awaits_s` seconds. `gpus` are the devices of a trainer, and `gpu_memory`
#: the bytes that it has on them.
Figures = TypedDict(
    "Figures",
    {
        "pass": Count,
        "step": Count,
        "loss": float,
        "samples_per_s": float,
        "compute": float,
        "wait": float,
        "wire": float,
        "cpu": float,
        "memory": Count,
        "values": dict[str, float],
        "started": Moment,
        "staleness": list[tuple[Count, Count]],
        "tables": list[TableCounts],
        "lost": Count,
        "apply_s": float,
        "send_s": float,
        "passes": Count,
        "awaits": Ranks,
        "awaited": Count,
        "waiting": Count,
        "awaits_s": Moment,
        "gpus": Devices,
        "gpu_memory": Count,
    },
    total=False,
)
#: The figures that `status --json` has for every process, if only as null, and those that it has when they are known.
ALWAYS_SHOWN = (
    *("pass", "step", "loss", "samples_per_s", "compute", "wait", "wire", "cpu", "memory", "values", "started"),
    *("staleness", "tables", "lost"),
)
#: Those that hold only until the next report.
PASSING = ("awaits", "awaited", "waiting", "awaits_s")
SHOWN_IF_KNOWN = ("apply_s", "send_s", "passes", "gpus", "gpu_memory", *PASSING)
FIGURES = (*ALWAYS_SHOWN, *SHOWN_IF_KNOWN)


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

    def to_json(self) -> dict[str, Any]:
        """The form that `status --json` shows."""
        return {
            "node": self.node.id,
            "host": self.node.where,
            "role": self.role,
            "rank": self.rank,
            "state": self.state,
            "pid": self.pid,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            **{name: self.figures.get(name) for name in ALWAYS_SHOWN},
            **{name: self.figures[name] for name in SHOWN_IF_KNOWN if name in self.figures},  # type: ignore[literal-required]
        }


class Bucket(NamedTuple):
    """Neighbouring points of a curve, `points` of them finite and `gaps` NaN or infinite.

    `low`, `high`, `mean` (by `weight`) and `last` are of the finite ones, None if there are none. The steps are those
    of the first and the last point, None if the events have no step.
    """

    t0: float
    t1: float
    step0: int | None
    step1: int | None
    points: int
    weight: float
    low: float | None
    high: float | None
    mean: float | None
    last: float | None
    gaps: int


@dataclass(frozen=True)
class Curve:
    """A figure of one process over time, oldest bucket first.

    `of` is "step" (what trainers and pservers report about their work), "log" (the program's own metrics), "usage"
    (`cpu` in cores, `memory` in bytes) or "table" (the rows of the sparse table `name`). `undone` are points that a
    roll back undid.
    """

    role: str
    rank: int
    of: str
    name: str
    buckets: tuple[Bucket, ...]
    undone: bool = False


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


class MetricValues(NamedTuple):
    """A metric of the program, as the mean of all trainers: of their last values, and of the best of each.

    NaN and infinity are never the best; `best` is None if a trainer has logged nothing else.
    """

    last: float
    best: float | None


@dataclass(frozen=True)
class RunOverview:
    """A run in the list of jobs. `loss` is the mean of the trainers' last losses. Secrets in arguments are hidden."""

    run: str
    state: str
    name: str | None = None
    arguments: tuple[str, ...] = ()
    seconds: float | None = None
    loss: float | None = None
    metrics: Mapping[str, MetricValues] = field(default_factory=dict)
    warnings: Sequence[RunWarning] = ()

    def to_json(self) -> dict[str, Any]:
        """The form that `jobs --json` shows: all but the run and its state only if it is known."""
        more = {
            "warnings": list(self.warnings),
            "name": self.name,
            "arguments": list(self.arguments),
            "seconds": self.seconds,
            "loss": self.loss,
            "metrics": {name: values._asdict() for name, values in self.metrics.items()},
        }
        known = {key: value for key, value in more.items() if value not in (None, [], {})}
        return {"run": self.run, "state": self.state, **known}


@dataclass(frozen=True)
class JobOverview:
    """A job in the list of jobs, and its `runs`, oldest first; `nodes` have it. It was dispatched at `t`."""

    job: str
    state: str
    runs: tuple[RunOverview, ...]
    workspace: str
    content: str
    files: int
    bytes: int
    t: float
    nodes: tuple[int, ...]

    @property
    def newest(self) -> RunOverview | None:
        return self.runs[-1] if self.runs else None

    def to_json(self) -> dict[str, Any]:
        """The form that `jobs --json` shows."""
        return {**vars(self), "runs": [run.to_json() for run in self.runs], "nodes": list(self.nodes)}


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

    def process(self, role: str | None, rank: int | None) -> ProcessRecord | None:
        return next((one for one in self.processes if (one.role, one.rank) == (role, rank)), None)
