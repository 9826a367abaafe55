"""The schema of the nodes' answers. Answers are checked on arrival, so that no later code meets a malformed one.

Answers may be hostile: their types have bounds. A stage declares the answers that only it reads.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from clusterctl.cluster.run_answers import DroppedCutAnswer, JobsAnswer, Membership, State
from clusterctl.common.answers import NamedAnswer, RanJob, SaveAnswer
from clusterctl.common.curves import Curve
from clusterctl.common.events import RunWarning
from clusterctl.common.paths import job_key
from clusterctl.common.requests import JobId, Name, Role, RunName
from clusterctl.common.requirements import FILE, LOCKS
from clusterctl.common.schema import (
    Bound,
    Count,
    Moment,
    NotRequired,
    SchemaError,
    at_most,
    reader,
)
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory import Node

ShortText = Annotated[str, at_most(500)]
Devices = Annotated[list[ShortText], at_most(1024)]


class GpuAnswer(TypedDict):
    """A GPU: sizes in bytes, `utilization` in percent; None where its driver does not report them."""

    index: Count
    uuid: ShortText
    name: ShortText
    total: Count | None
    used: Count | None
    utilization: Count | None


class GpuUser(TypedDict):
    """A process on the GPU with the index `gpu`, as far as the node can see it. `job`: the job that it belongs to."""

    gpu: Count | None
    pid: Count
    name: ShortText | None
    account: ShortText | None
    memory: Count | None
    job: ShortText | None


Gpus = Annotated[list[GpuAnswer], at_most(1024)]  # or their MIG instances
GpuUsers = Annotated[list[GpuUser], at_most(256)]


class GpuReport(TypedDict):
    """The GPUs of a node and the processes on them; in `status` without those of the run.

    `devices`: those that trainers may use, as CUDA_VISIBLE_DEVICES names them. `problem`: the failure of nvidia-smi.
    """

    devices: Devices
    gpus: Gpus
    users: GpuUsers
    problem: ShortText | None


class FoundDevices(TypedDict):
    """The devices of a node that is ready to start, None without GPUs. Nodes with the same `pool` share them."""

    devices: Devices | None
    pool: ShortText
    problem: ShortText | None


MOST_WORDS = 4000  # characters of an error message from a node
#: Errors that a malformed answer causes in code that reads it.
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

RequirementsFile = Annotated[str, Bound("a file of requirements", lambda name: name in (FILE, *LOCKS))]
Digest = Annotated[str, at_most(64)]
Line = Annotated[str, at_most(64 << 10)]  # of a log; agents truncate at this length


def names_process(value: Mapping[str, Any]) -> bool:
    """Return True if the value names a process by role and rank, or names no process."""
    return (value.get("role") is None) == (value.get("rank") is None)


class ReportedCause(TypedDict, total=False):
    """The cause of a failure as the lead of a run sees it: the part of `events.EndCause` that is shown."""

    kind: str | None
    message: str | None
    node: Count | None
    role: str | None
    rank: Count | None
    tail: list[str] | None


SoundCause = Annotated[ReportedCause, Bound("about a process or none", names_process)]


class ReportedEnd(TypedDict):
    """The last event of a run's lead, with bounds."""

    state: State
    cause: NotRequired[SoundCause | None]
    warnings: NotRequired[list[RunWarning] | None]


class ReportedPhase(TypedDict):
    """The lead's order to begin a phase of the run, with bounds."""

    phase: str
    cause: NotRequired[SoundCause | None]


class RunEnd(ReportedEnd):
    """The end of a run in the status of its lead."""

    t: Moment


#: The checkpoint from which a run was resumed, or the model that it started with: its run, and the job of that if it is
#: another one.
Resumed = TypedDict(
    "Resumed",
    {
        "job": NotRequired[JobId | None],
        "run": RunName,
        "tag": NotRequired[str],
        "step": Count,
        "pass": NotRequired[Count],
    },
)


class ProcessAnswer(TypedDict):
    """A process in the answer to `status`. It also has the fields of `Figures`, which it reports itself."""

    role: Role
    rank: Count
    state: str
    pid: NotRequired[Count | None]
    restarts: NotRequired[Count | None]
    exit_code: NotRequired[int | None]


class StatusFacts(Membership, total=False):
    """The optional fields of a status answer."""

    mode: str | None
    now: Moment | None
    resumed: Resumed | None
    phase: str | None
    waits_for: list[str] | None
    cut_dropped: DroppedCutAnswer | None
    warnings: list[RunWarning] | None
    ended: RunEnd | None
    last_event: object
    gpus: GpuReport | None


class JobChoice(TypedDict):
    """The part of a node's answer to a request without a job: its own choice, and the jobs that it chose from."""

    job: JobId
    ran: NotRequired[list[RanJob] | None]


class StatusAnswer(StatusFacts, JobChoice):
    """One node's view of the newest run of a job, and the jobs it chose from if none was named."""

    dir: str
    state: State
    processes: list[ProcessAnswer]


class ProcessOutput(TypedDict):
    """The last lines of an attempt of a process, with their times. `ours`: the indexes of those of clusterctl."""

    role: Role
    rank: Count
    attempt: Count
    lines: list[tuple[Moment, Line]]
    ours: list[Count]


class DiagnosisAnswer(Membership):
    """One node's account of a run, for `why`.

    `stop_asked`: it was stopped, also if that was after its end. `start_failed`: because other nodes did not start.
    """

    job: JobId
    state: State
    events: list[dict[str, Any]]
    outputs: list[ProcessOutput]
    seen: NotRequired[Moment | None]
    booted: NotRequired[Moment | None]
    stop_asked: NotRequired[bool]
    start_failed: NotRequired[bool]
    free_bytes: NotRequired[Count | None]
    free_inodes: NotRequired[Count | None]
    python: NotRequired[str | None]
    requirements: NotRequired[list[str] | None]
    requirements_file: NotRequired[RequirementsFile | None]
    environment: NotRequired[str | None]
    spec: NotRequired[dict[str, Any] | None]
    versions: NotRequired[dict[str, str] | None]


class ContentsAnswer(TypedDict):
    """The files and packages of a job on a node, as hashes."""

    job: JobId
    digest: Digest
    changed: Count
    packages: dict[str, Name]
    run: NotRequired[RunName | None]


class EndedBefore(TypedDict):
    """The end of a run that was over when `stop` came."""

    state: State
    t: Moment


class LeftProcess(TypedDict):
    """A process that `stop` could not end."""

    pid: Count
    command: str


class PortHolder(TypedDict):
    port: Count
    pid: Count | None
    uid: Count | None
    name: str | None


class StopAnswer(Membership):
    """The result of `stop` on a node."""

    job: JobId
    dir: str
    was: str
    killed: Count
    survivors: Count
    leftovers: Count
    left: list[LeftProcess]
    ports_busy: list[Count]
    holders: list[PortHolder]
    ended: NotRequired[EndedBefore | None]


#: The answers that all commands check in the same way.
ANSWERS: Mapping[str, Any] = {
    "status": StatusAnswer,
    "jobs": JobsAnswer,
    "find_named": NamedAnswer,
    "diagnose": DiagnosisAnswer,
    "save": SaveAnswer,
    "contents": ContentsAnswer,
    "stop": StopAnswer,
}


class LogStream(TypedDict):
    """The log of one process. `at`: the offset from which it is read."""

    role: Role
    rank: Count
    at: Count


class EventAnswer(TypedDict):
    """An event of events.jsonl; it also has the fields of its kind."""

    event: str
    t: Moment
    node: NotRequired[Count | None]


class LogNews(TypedDict, total=False):
    """A message of `logs` or `follow`. `alive` is the node's time, sent when it has no news."""

    run: RunName | None
    streams: list[LogStream]
    events: list[EventAnswer]
    at: Count
    lines: list[tuple[Moment, Count, Line, Count]]
    shown: Count
    held: list[tuple[Count, Count, Count]]
    caught_up: bool
    done: dict[str, Any]
    alive: Moment


class CurvesAnswer(TypedDict):
    """A message of `curves`."""

    curves: list[Curve]


class CurvesEnd(TypedDict):
    """The final message of `curves`: the offset until which events were read, and the node's time."""

    at: Count
    now: Moment


class FollowedNode(TypedDict):
    state: State


class FollowEnd(TypedDict):
    """The final message of `follow`."""

    node: FollowedNode


def check(operation: str, answer: Mapping[str, Any]) -> Any:
    """Return an answer as its declaration says. Raises ValueError that names the first malformed field."""
    kind = ANSWERS.get(operation)
    return answer if kind is None else read(kind, answer, operation)


def read(kind: Any, message: object, operation: str) -> Any:
    """Return a message as it is declared. Raises ValueError if it is malformed."""
    try:
        return reader(kind)(message)
    except SchemaError as exc:
        raise ValueError(f"{operation}: {exc}") from None


def news(message: object) -> LogNews:
    """Return a message of `logs` or `follow`. Raises ValueError if it is malformed."""
    checked: LogNews = read(LogNews, message, "logs")
    if "events" in checked and "at" not in checked:
        raise ValueError("logs: `at` is missing")
    return checked


def curves(message: object) -> list[Curve]:
    """Return the curves in a message of `curves`. Raises ValueError if one is malformed."""
    checked: CurvesAnswer = read(CurvesAnswer, message, "curves")
    return checked["curves"]


def senseless(node: Node, exc: Exception) -> NodeError:
    """Return the error for a malformed answer, so that a hostile or outdated node does not affect the others."""
    hint = "check that the node has not been compromised; --verbose shows where the check failed"
    return NodeError(f"its answer is malformed: {exc!r}"[:MOST_WORDS], node=node.label, hint=hint)


class SeveralRunningError(UsageError):
    """Several jobs are running: the user has to name one of `jobs`."""

    def __init__(self, jobs: Sequence[str]) -> None:
        names = ", ".join(jobs)
        hint = f"name one of them, such as {jobs[0]}; clusterctl status shows them all"
        super().__init__(f"{len(jobs)} jobs are running: {names}", hint=hint, details={"jobs": list(jobs)})
        self.jobs = list(jobs)


def choose_job(answers: Sequence[JobChoice], *, to_resume: bool = False) -> str:
    """Return the job that runs on any node, else the one that ran last, else the newest.

    `to_resume`: the one that ran last is meant, even if others are live. Otherwise raises SeveralRunningError if
    several are. Clocks of nodes differ: the median of a job's times counts.
    """
    times: dict[str, list[float]] = {}
    for row in (row for answer in answers for row in answer.get("ran") or ()):
        times.setdefault(row["job"], []).append(row["t"])
    live = {row["job"] for answer in answers for row in answer.get("ran") or () if row["live"]}
    if live and not to_resume:
        if len(live) > 1:
            raise SeveralRunningError(sorted(live, key=job_key, reverse=True))
        return live.pop()
    if times:
        return max(times, key=lambda job: (statistics.median(times[job]), job_key(job)))
    return max((answer["job"] for answer in answers), key=job_key)
