"""The schema of the nodes' answers. Answers are checked on arrival, so that no later code meets a malformed one.

A shape is a predicate: it returns True if a value has that shape. Shapes check ranges and lengths, because an answer
may be hostile; the classes below declare the keys that our code reads, for type checkers. A stage declares the answers
that only it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from clusterctl.cluster.job_choice import JobChoice
from clusterctl.common.paths import is_job_name
from clusterctl.common.safe_json import is_whole
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

Shape = Callable[[Any], bool]
#: States of jobs and runs, the worst first.
STATES = ("unknown", "lost", "failed", "stopped", "running", "starting", "succeeded", "dispatched")
ROLES = ("pserver", "trainer", "scheduler")
END_OF_TIME = 1e11  # seconds since the epoch; calendars do not reach further
LONGEST_LINE = 64 << 10  # of a log; agents truncate at this length
MOST_DIGITS = 9
MOST_WORDS = 4000  # characters of an error message from a node
#: Errors that a malformed answer causes in code that reads it.
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class LeftOutNode(TypedDict):
    """A node of conf.py that does not take part in a run, and the reason given at the start."""

    node: int
    message: str


class Membership(TypedDict, total=False):
    """The newest run as one node knows it: its name, when it started, and its nodes. Without a run these are None."""

    run: str | None
    started: float | None
    members: list[int] | None
    left_out: list[LeftOutNode] | None


class Cause(TypedDict, total=False):
    """The cause of a failure as the lead of a run sees it."""

    kind: str | None
    message: str | None
    node: int | None
    role: str | None
    rank: int | None
    tail: list[str] | None


class RunEnd(TypedDict, total=False):
    """The end of a run in the status of its lead."""

    t: float
    state: str
    cause: Cause | None
    warnings: list[RunWarning]


class RunWarning(TypedDict):
    """A doubt about a run that succeeded."""

    kind: str
    message: str


class Checkpoint(TypedDict):
    """A checkpoint of a run."""

    run: str
    step: int


class Resumed(Checkpoint, total=False):
    """The checkpoint from which a run was resumed, and its job if that is another one."""

    job: str | None


class StatusAnswer(Membership, JobChoice, total=False):
    """One node's view of the newest run of a job, and the jobs it chose from if none was named.

    `processes` also hold the fields that the processes report themselves: see OWN_WORDS.
    """

    dir: str
    state: str
    mode: str | None
    now: float | None
    resumed: Resumed | None
    waits_for: list[str] | None
    ended: RunEnd | None
    processes: list[dict[str, Any]]
    last_event: object


class _RunFacts(Membership, total=False):
    warnings: list[RunWarning]


class RunAnswer(_RunFacts):
    state: str


class DispatchRecord(TypedDict):
    workspace: str
    content: str
    files: int
    bytes: int
    t: float


class JobAnswer(TypedDict):
    """One job on one node, in the answer to `jobs`."""

    job: str
    runs: list[RunAnswer]
    record: DispatchRecord


class PortHolder(TypedDict):
    port: int
    pid: int | None
    uid: int | None
    name: str | None


class LogStream(TypedDict):
    """The log of one process. `at`: the offset from which it is read."""

    role: str
    rank: int
    at: int


class LogNews(TypedDict, total=False):
    """A message of `logs` or `follow`."""

    run: str | None
    streams: list[LogStream]
    events: list[dict[str, Any]]
    at: int
    lines: list[list[Any]]
    held: list[list[int]]
    done: dict[str, Any]
    alive: bool


class FollowedNode(TypedDict):
    state: str


class FollowEnd(TypedDict):
    """The final message of `follow`."""

    node: FollowedNode


def text(value: Any) -> bool:
    return isinstance(value, str)


def line(value: Any) -> bool:
    return text(value) and len(value) <= LONGEST_LINE


def number(value: Any) -> bool:
    """Return True for any number, including NaN and infinity: a loss can be either."""
    return isinstance(value, float) or is_whole(value)


def moment(value: Any) -> bool:
    return number(value) and math.isfinite(value) and 0 <= value < END_OF_TIME


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def run_name(value: Any) -> bool:
    return text(value) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS


def job_id(value: Any) -> bool:
    """Return True for the name of a job that is safe to use as a directory name on this machine."""
    return text(value) and is_job_name(value)


def one_of(*words: str) -> Shape:
    return lambda value: text(value) and value in words


def maybe(shape: Shape) -> Shape:
    """Accept a value of this shape, None, or a missing field."""
    return lambda value: value is None or shape(value)


def all_of(*shapes: Shape) -> Shape:
    return lambda value: all(shape(value) for shape in shapes)


def list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def pair_of(*shapes: Shape) -> Shape:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(shapes)
            and all(s(v) for s, v in zip(shapes, value, strict=True))
        )

    return fits


def each_value(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def record(**fields: Shape) -> Shape:
    """An object with these fields. Other fields are allowed and ignored."""
    return lambda value: isinstance(value, dict) and not misfits(fields, value)


def misfits(fields: Mapping[str, Shape], value: Mapping[str, Any]) -> list[str]:
    return [name for name, shape in fields.items() if not shape(value.get(name))]


def names_process(value: Mapping[str, Any]) -> bool:
    """Return True if the value names a process by role and rank, or names no process."""
    return (value.get("role") is None) == (value.get("rank") is None)


CAUSE = all_of(
    record(
        kind=maybe(text),
        message=maybe(text),
        node=maybe(count),
        role=maybe(text),
        rank=maybe(count),
        tail=maybe(list_of(text)),
    ),
    names_process,
)
WARNINGS = maybe(list_of(record(kind=text, message=text)))
_END: Mapping[str, Shape] = {"state": one_of(*STATES), "cause": maybe(CAUSE), "warnings": WARNINGS}
ENDED = record(**_END)
ENDED_BEFORE = record(state=one_of(*STATES), t=moment)
PROCESS = record(
    role=one_of(*ROLES),
    rank=count,
    state=text,
    pid=maybe(count),
    restarts=maybe(count),
    exit_code=maybe(is_whole),
)
MEMBERSHIP: Mapping[str, Shape] = {
    "started": maybe(moment),
    "members": maybe(list_of(count)),
    "left_out": maybe(list_of(record(node=count, message=text))),
}
RUN = record(run=run_name, state=one_of(*STATES), warnings=WARNINGS, **MEMBERSHIP)
JOB = record(
    job=job_id, runs=list_of(RUN), record=record(workspace=text, content=text, files=count, bytes=count, t=moment)
)
RESUMED = record(run=run_name, step=count, job=maybe(job_id))
#: The fields that are checked in each operation's answer.
ANSWERS: Mapping[str, Mapping[str, Shape]] = {
    "status": {
        "job": job_id,
        "dir": text,
        "run": maybe(run_name),
        "state": one_of(*STATES),
        "mode": maybe(text),
        "now": maybe(moment),
        "resumed": maybe(RESUMED),
        "waits_for": maybe(list_of(text)),
        "ran": maybe(list_of(record(job=job_id, t=moment, live=truth))),
        "ended": maybe(record(t=moment, **_END)),
        "processes": list_of(PROCESS),
        **MEMBERSHIP,
    },
    "jobs": {"jobs": list_of(JOB)},
    "diagnose": {
        "job": job_id,
        "run": maybe(run_name),
        "state": one_of(*STATES),
        "started": maybe(moment),
        "events": list_of(record()),
        "outputs": list_of(
            record(
                role=one_of(*ROLES),
                rank=count,
                attempt=count,
                lines=list_of(pair_of(moment, line)),
                ours=maybe(list_of(count)),
            )
        ),
        "seen": maybe(moment),
        "booted": maybe(moment),
        "free_bytes": maybe(count),
        "free_inodes": maybe(count),
        "python": maybe(text),
        "requirements": maybe(list_of(text)),
        "environment": maybe(text),
    },
    "stop": {
        "job": job_id,
        "dir": text,
        "run": maybe(run_name),
        "was": text,
        "killed": count,
        "survivors": count,
        "ended": maybe(ENDED_BEFORE),
        "leftovers": count,
        "left": list_of(record(pid=count, command=text)),
        "ports_busy": list_of(count),
        "holders": list_of(record(port=count, pid=maybe(count), uid=maybe(count), name=maybe(text))),
        **MEMBERSHIP,
    },
}
#: Further fields of a process that `status` shows. The process itself reports them; a malformed one is dropped.
OWN_WORDS: Mapping[str, Shape] = {
    **dict.fromkeys(("pass", "step", "memory", "lost"), count),
    **dict.fromkeys(("loss", "samples_per_s", "compute", "wait", "wire", "cpu"), number),
    "started": moment,
    "values": each_value(number),
    "staleness": list_of(pair_of(count, count)),
    "tables": list_of(lambda table: isinstance(table, dict) and text(table.get("name")) and _counts(table)),
}
LINE = pair_of(moment, count, line, count)
EVENT = record(event=text, t=moment, node=maybe(count))
#: The messages of `logs` and `follow`, each with some of these fields; and the final one of `follow`.
NEWS = record(
    run=maybe(run_name),
    streams=maybe(list_of(record(role=one_of(*ROLES), rank=count, at=maybe(count)))),
    events=maybe(list_of(EVENT)),
    at=maybe(count),
    lines=maybe(list_of(LINE)),
    held=maybe(list_of(pair_of(count, count, count))),
)
FOLLOWED = record(node=record(state=one_of(*STATES)))


def _counts(table: Mapping[str, Any]) -> bool:
    return all(is_whole(value) for name, value in table.items() if name != "name")


def check(operation: str, answer: Mapping[str, Any]) -> None:
    """Raise ValueError with the names of the malformed fields, if an answer has any."""
    wrong = misfits(ANSWERS.get(operation, {}), answer)
    if wrong:
        raise ValueError(f"{operation}: {', '.join(wrong)}")


def news(message: Any) -> LogNews:
    """Return the message. Raises ValueError if it is not a message of `logs` or `follow`."""
    if not NEWS(message) or ("events" in message and "at" not in message):
        raise ValueError(f"malformed log message: {', '.join(message)}"[:200])
    checked: LogNews = message
    return checked


def followed(last: Any) -> FollowEnd:
    """Return the final message of `follow`. Raises ValueError if it is malformed."""
    if not FOLLOWED(last):
        raise ValueError("the final message has no state")
    checked: FollowEnd = last
    return checked


def own_word(name: str, value: Any) -> Any:
    """Return a value that a process reports about itself, or None if it is malformed."""
    return value if OWN_WORDS[name](value) else None


def senseless(node: Node, exc: Exception) -> NodeError:
    """Return the error for a malformed answer, so that a hostile or outdated node does not affect the others."""
    hint = "check that the node has not been compromised; --verbose shows where the check failed"
    return NodeError(f"its answer is malformed: {exc!r}"[:MOST_WORDS], node=node.label, hint=hint)
