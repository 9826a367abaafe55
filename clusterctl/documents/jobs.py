"""The documents of commands about jobs and their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from clusterctl.cluster.answers import LeftProcess, PortHolder, Resumed
from clusterctl.cluster.run_answers import LeftOutNode
from clusterctl.common.events import RunWarning
from clusterctl.common.schema import Count, Moment, NotRequired, Record
from clusterctl.documents.nodes import FailedNode, NodeHead
from clusterctl.observe.record.members import MemberList
from clusterctl.observe.record.model import JobOverview, OccasionalFigures, TableCounts
from clusterctl.observe.record.status import StatusNode
from clusterctl.schedulers.scheduled import SchedulerDocument

#: A part of documents of its own, since the key is a keyword.
PassNumber = TypedDict("PassNumber", {"pass": Count | None})


class RunLabel(TypedDict, total=False):
    """The name that a run was given, left out if it has none."""

    name: str


def run_label(name: str | None) -> RunLabel:
    return {"name": name} if name else {}


class ScheduledPart(TypedDict, total=False):
    """A job that was submitted, as seen from outside its nodes."""

    scheduler: SchedulerDocument


# start


class ProcessPlan(TypedDict):
    node: Count
    host: str
    role: str
    rank: Count
    argv: list[str]
    cwd: str
    env: dict[str, str]


class LossPlan(TypedDict):
    """What would happen if a node were lost."""

    node: Count
    moves: NotRequired[dict[str, Count]]  # where its processes would go, by name
    gives_up: NotRequired[list[str]]  # the trainers that the run would go on without
    fails: NotRequired[str]  # why the run would fail instead


class StartPlan(TypedDict):
    """The document of `start --plan`."""

    job: str  # a placeholder if it is yet to be dispatched
    processes: list[ProcessPlan]
    losses: NotRequired[list[LossPlan]]  # if processes move when their node is lost: of each node but the first
    resume: NotRequired[Resumed]  # the checkpoint that the run would start from
    load: NotRequired[Resumed]  # the model that the run would start from


class AdoptedDocument(TypedDict):
    job: str
    files: Count  # of the node that has most
    bytes: Count
    differ: Count  # how many files have other contents on other nodes
    missing: Count  # how many files some nodes lack


class StartedFrom(TypedDict, total=False):
    """The checkpoint or the model that a run starts from, if any."""

    resumed: Resumed  # the checkpoint
    loaded: Resumed  # the model
    adopted: AdoptedDocument  # with `--adopt` and `--detach`: the directory


class StartedRun(RunLabel, StartedFrom, MemberList):
    """A run that was started."""

    job: str
    run: str


class StartDocument(StartedRun):
    """The last line of `start`, whose other lines are events."""

    state: str


class DetachedStart(StartDocument):
    """The document of `start --detach`."""

    job_workspace: str  # the directory in a form valid on every node


class RejoinedNode(NodeHead):
    run: str
    did: str  # "joined", "told" (it was already in the run) or "ended" (the run is over)


class RejoinDocument(TypedDict):
    """The document of `start --rejoin`."""

    job: str
    nodes: list[RejoinedNode | FailedNode]


class KeptJob(TypedDict):
    """The document of `keep`. `state` is that of the last `run`, `resumes` how many runs continued lost ones."""

    job: str
    run: str
    state: str
    resumes: Count


class KeeperOnMachine(TypedDict):
    job: str
    pid: Count
    log: str | None  # null: in the foreground of a terminal


class KeepersDocument(TypedDict):
    """The document of `keep --status`."""

    keepers: list[KeeperOnMachine]


# status


class ProcessDocument(PassNumber, OccasionalFigures):
    """A process and its newest figures, null until they are known."""

    node: Count
    host: str
    role: str
    rank: Count
    state: str
    pid: Count | None
    restarts: Count
    exit_code: int | None
    step: Count | None
    loss: float | None
    samples_per_s: float | None
    compute: float | None  # with `wait` and `wire`, a share of the time
    wait: float | None
    wire: float | None
    cpu: float | None  # 1.0 is one core
    memory: Count | None  # bytes
    values: dict[str, float] | None  # numbers that the program logged with `ps.log`
    started: Moment | None  # seconds since 1970
    staleness: list[tuple[Count, Count]] | None  # of a pserver: other pushes applied in between, and how many pushes
    tables: list[TableCounts] | None  # of a pserver: for each embedding its name, rows, bytes and counts of ids
    lost: Count | None  # pushes lost when a pserver before it failed


class MissedSave(TypedDict):
    """A checkpoint or model that was not saved at its time."""

    t: Moment
    message: str
    trainers: list[Count]  # the ranks whose pushes or states were missing


class StatusNotes(TypedDict, total=False):
    """Problems of a run, left out if it has none."""

    cut_dropped: MissedSave
    warnings: list[RunWarning]


class StatusDocument(RunLabel, StatusNotes, ScheduledPart, MemberList):
    """The state of a job. Of one that waits for a scheduler, `job` and `run` are null."""

    job: str | None
    run: str | None  # null if it was never started
    state: str
    job_workspace: str | None  # the directory in a form valid on every node
    resumed: Resumed | None
    processes: list[ProcessDocument]
    nodes: list[StatusNode]


class RunningJobs(TypedDict):
    """The document of `status` if several jobs are running and none was named."""

    jobs: list[StatusDocument]


@dataclass(frozen=True)
class JobsDocument(Record):
    OMITTED = ("queued",)

    jobs: tuple[JobOverview, ...]
    queued: tuple[SchedulerDocument, ...] | None = None  # jobs that were submitted and wait for nodes


class LineDocument(TypedDict):
    """A line of a log, and its time."""

    t: Moment
    line: str


class LogLineDocument(LineDocument):
    """A line of the stream that `logs` prints."""

    node: Count
    role: str
    rank: Count


# why


class IncidentDocument(TypedDict):
    """Something that went wrong."""

    kind: str  # exit, failure, node_lost, stalled, nan, left, time_limit, stopped or scheduler
    reason: str  # as in docs/why.md
    t: Moment  # when it began, by the clock of this machine
    noted: Moment  # when it was recorded
    node: Count | None
    host: str | None
    role: str | None
    rank: Count | None
    attempt: Count | None
    message: str
    words: str  # the reason in words
    error: str | None  # the exception
    where: str | None  # file and line of the program
    exit_code: int | None
    signal: str | None
    errno: str | None
    subject: str | None  # the module, library or path
    times: Count  # repetitions in a row
    lines: list[LineDocument]


class LastCheckpoint(TypedDict):
    tag: str | None
    step: Count | None


class ClockOffset(TypedDict):
    node: Count
    offset_s: float  # the clock of this machine minus that of the node
    margin_s: float


class SilentNode(TypedDict):
    node: str | None
    message: str


class WhyDocument(RunLabel, PassNumber, ScheduledPart, MemberList):
    """The explanation of a run."""

    job: str
    run: str | None
    state: str
    cause: IncidentDocument | None  # null if nothing failed
    advice: str | None
    notes: list[str]  # what sets that node apart
    then: list[IncidentDocument]  # what followed
    alike: list[IncidentDocument]  # processes that failed in the same way
    before: list[IncidentDocument]  # failures that the run recovered from
    open: list[IncidentDocument]  # current problems
    warnings: list[RunWarning]
    stopped: Count  # the number of other processes that were stopped
    not_heard_of: list[Count] | None  # nodes that did not answer at the end
    step: Count | None
    seconds: float | None
    checkpoint: LastCheckpoint | None  # the last one
    clocks: list[ClockOffset]
    unknown: list[SilentNode]  # nodes that did not answer now


class WhyNoRun(TypedDict):
    """The explanation of a submitted job that has no run."""

    job: str | None
    run: str | None
    state: str
    cause: IncidentDocument | None
    advice: str | None
    lines: list[str]  # the last that its script printed
    scheduler: SchedulerDocument


# stop


class StoppedNode(NodeHead):
    dir: str
    run: str | None
    was: str  # its state before
    killed: Count  # processes that needed KILL
    leftovers: Count  # processes that ran without a supervisor
    survivors: Count  # processes that are left
    left: list[LeftProcess]  # the first of them
    ports_busy: list[Count]
    holders: list[PortHolder]  # of those ports; null is what belongs to another account


class StopDocument(ScheduledPart, MemberList):
    job: str | None
    run: NotRequired[str | None]  # of a submitted job without a run: null
    survivors: Count
    nodes: list[StoppedNode | FailedNode]


# Results


@dataclass(frozen=True)
class CollectedFile(Record):
    """One downloaded file: `path` is relative to the target directory."""

    path: str
    node: Count
    bytes: Count
    sha256: str


class LeftPath(TypedDict):
    """A path that stayed on its node."""

    node: Count
    path: str
    kind: str  # link, special or name


@dataclass(frozen=True)
class Skipped(Record):
    """A model that cannot be completed from the nodes that answered, and why."""

    tag: str
    reason: str


@dataclass(frozen=True)
class CollectDocument(Record):
    job: str
    run: str | None
    members: tuple[Count, ...]
    left_out: tuple[LeftOutNode, ...]
    files: tuple[CollectedFile, ...]
    left: tuple[LeftPath, ...]
    model: str | None  # the file of the merged model
    tag: str | None
    more_models: Count  # how many models stayed on the nodes
    warnings: tuple[RunWarning, ...]
    skipped: tuple[Skipped, ...]  # newer models that cannot be completed
    report: str | None  # its path


class ReportDocument(MemberList):
    job: str
    run: str
    state: str
    file: str
    bytes: Count


class ExportDocument(TypedDict):
    job: str
    run: str
    state: str
    to: str
    dir: str
    files: list[str]
    count: Count  # of points; for a trace, of events


# diff


class DiffSide(MemberList):
    """One of the runs that are compared."""

    job: str
    run: str
    state: str
    cause: str | None  # the headline of the first cause


class MetricRange(TypedDict):
    """A metric of all trainers together."""

    final: float | None  # null if it is not finite
    lowest: float | None
    highest: float | None


class FileVersion(TypedDict):
    bytes: Count
    contents: str  # the sha256, or `-> TARGET` for a link


DiffValue = str | float | bool | MetricRange | list[FileVersion] | None


class DiffRow(TypedDict):
    """A value in both runs, null where it is missing."""

    name: str
    a: DiffValue
    b: DiffValue
    same: bool


class ChangedFiles(TypedDict):
    """How many files were changed on a node after the dispatch."""

    side: str
    node: Count
    files: Count


class DiffDocument(TypedDict):
    a: DiffSide
    b: DiffSide
    facts: list[DiffRow]  # outcome, workspace, nodes, resumed from
    figures: list[DiffRow]  # duration_s, pass, step, samples_per_s, restarts
    settings: list[DiffRow]
    arguments: list[DiffRow]
    env: list[DiffRow]  # true for a variable that is set
    packages: list[DiffRow]
    files: list[DiffRow]  # those that differ: a list of the distinct versions
    metrics: list[DiffRow]
    changed_since: NotRequired[list[ChangedFiles]]
