"""The schema of the nodes' answers. Answers are checked on arrival, so that no later code meets a malformed one.

Shapes (see `shapes.py`) check ranges and lengths, because an answer may be hostile; the classes below declare the keys
that our code reads, for type checkers. A stage declares the answers that only it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from clusterctl.cluster.gpu_answers import DEVICES, REPORT, GpuReport
from clusterctl.cluster.job_choice import JobChoice
from clusterctl.cluster.run_answers import (
    DROPPED_CUT,
    JOB,
    MEMBERSHIP,
    NAMED,
    STATES,
    WARNINGS,
    DroppedCut,
    Membership,
    RunWarning,
)
from clusterctl.cluster.shapes import (
    Shape,
    all_of,
    count,
    each_value,
    finite,
    job_id,
    line,
    list_of,
    maybe,
    misfits,
    moment,
    names_process,
    number,
    one_of,
    pair_of,
    record,
    run_name,
    text,
    truth,
    up_to,
)
from clusterctl.common.requirements import FILE, LOCKS
from clusterctl.common.safe_json import is_whole
from clusterctl.errors import NodeError
from clusterctl.inventory import Node

ROLES = ("pserver", "trainer", "scheduler")
CURVES_OF = ("step", "log", "usage", "table")
MOST_BUCKETS = 1000  # of a curve; agents send no more
MOST_NAME = 200  # characters of the name of a curve
MOST_AWAITED = 4  # trainers that a pserver names
MOST_WORDS = 4000  # characters of an error message from a node
#: Errors that a malformed answer causes in code that reads it.
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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


class Checkpoint(TypedDict):
    """A checkpoint of a run."""

    run: str
    step: int


class Resumed(Checkpoint, total=False):
    """The checkpoint from which a run was resumed, its tag, and its job if that is another one."""

    job: str | None
    tag: str


class StatusAnswer(Membership, JobChoice, total=False):
    """One node's view of the newest run of a job, and the jobs it chose from if none was named.

    `processes` also hold the fields that the processes report themselves: see OWN_WORDS.
    """

    dir: str
    state: str
    mode: str | None
    now: float | None
    resumed: Resumed | None
    phase: str | None
    waits_for: list[str] | None
    cut_dropped: DroppedCut | None
    warnings: list[RunWarning] | None
    ended: RunEnd | None
    processes: list[dict[str, Any]]
    last_event: object
    gpus: GpuReport | None


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
    shown: int
    held: list[list[int]]
    caught_up: bool
    done: dict[str, Any]
    alive: bool


class CurveAnswer(TypedDict):
    """One figure of one process over a run, in the answer to `curves`: see `agent/node/curves.py`.

    `of` is the kind of figure, `undone` true for points that a roll back undid. Each bucket is `[t0, t1, step0, step1,
    count, weight, min, max, mean, last, gaps]`; the steps may be None, and without finite values the four figures are.
    """

    role: str
    rank: int
    of: str
    name: str
    undone: bool
    buckets: list[list[Any]]


class FollowedNode(TypedDict):
    state: str


class FollowEnd(TypedDict):
    """The final message of `follow`."""

    node: FollowedNode


def bucket(value: Any) -> bool:
    """Return True for a bucket of a curve, as `CurveAnswer` describes it."""
    if not _BUCKET_FIELDS(value):
        return False
    t0, t1, _, _, counted, weight, *figures, _ = value
    return t0 <= t1 and weight >= 0 and all((figure is None) == (counted == 0) for figure in figures)


_BUCKET_FIELDS = pair_of(moment, moment, *[maybe(count)] * 2, count, finite, *[maybe(finite)] * 4, count)
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
RESUMED = record(run=run_name, step=count, job=maybe(job_id))
#: The fields that are checked in each operation's answer.
ANSWERS: Mapping[str, Mapping[str, Shape]] = {
    "status": {
        "job": job_id,
        "dir": text,
        "run": maybe(run_name),
        "state": one_of(*STATES),
        "mode": maybe(text),
        "phase": maybe(text),
        "now": maybe(moment),
        "resumed": maybe(RESUMED),
        "waits_for": maybe(list_of(text)),
        "cut_dropped": maybe(DROPPED_CUT),
        "warnings": WARNINGS,
        "ran": maybe(list_of(record(job=job_id, t=moment, live=truth))),
        "ended": maybe(record(t=moment, **_END)),
        "processes": list_of(PROCESS),
        "gpus": maybe(REPORT),
        **MEMBERSHIP,
    },
    "jobs": {"jobs": list_of(JOB)},
    "find_named": NAMED,
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
                ours=list_of(count),
            )
        ),
        "seen": maybe(moment),
        "booted": maybe(moment),
        "free_bytes": maybe(count),
        "free_inodes": maybe(count),
        "python": maybe(text),
        "requirements": maybe(list_of(text)),
        "requirements_file": maybe(one_of(FILE, *LOCKS)),
        "environment": maybe(text),
        "spec": maybe(record()),
        "versions": maybe(each_value(text)),
    },
    "save": {"job": job_id, "run": run_name, "tag": up_to(MOST_NAME, text), "step": count},
    "contents": {
        "job": job_id,
        "run": maybe(run_name),
        "digest": up_to(64, text),
        "changed": count,
        "packages": each_value(up_to(MOST_NAME, text)),
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
#: Further fields of a process that `status` shows. Most are what it reports itself; a malformed one is dropped.
OWN_WORDS: Mapping[str, Shape] = {
    **dict.fromkeys(("pass", "passes", "step", "memory", "gpu_memory", "lost", "awaited", "waiting"), count),
    **dict.fromkeys(("loss", "samples_per_s", "compute", "wait", "wire", "cpu", "apply_s", "send_s"), number),
    "started": moment,
    "gpus": DEVICES,
    "awaits": up_to(MOST_AWAITED, list_of(count)),
    "awaits_s": moment,
    "values": each_value(number),
    "metrics": each_value(pair_of(number, maybe(finite), maybe(finite))),
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
    shown=maybe(count),
    held=maybe(list_of(pair_of(count, count, count))),
)
READ_UNTIL = record(at=count, now=moment)
FOLLOWED = record(node=record(state=one_of(*STATES)))
#: The message of `curves`.
CURVES = record(
    curves=list_of(
        record(
            role=one_of(*ROLES),
            rank=count,
            of=one_of(*CURVES_OF),
            name=up_to(MOST_NAME, text),
            undone=truth,
            buckets=up_to(MOST_BUCKETS, list_of(bucket)),
        )
    )
)


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


def curves(message: Any) -> list[CurveAnswer]:
    """Return the curves in a message of `curves`. Raises ValueError if one is malformed."""
    if not CURVES(message):
        raise ValueError("malformed curves")
    checked: list[CurveAnswer] = message["curves"]
    return checked


def read_until(last: Any) -> tuple[int, float]:
    """Return the offset and the node's time in the final message of `curves`. Raises ValueError if it is malformed."""
    if not READ_UNTIL(last):
        raise ValueError("the final message has no offset, or no time")
    return int(last["at"]), float(last["now"])


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
