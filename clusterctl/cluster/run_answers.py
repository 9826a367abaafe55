"""The schema of what nodes report about runs and jobs; for the checks of answers see `answers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from clusterctl.cluster.shapes import (
    Shape,
    count,
    each_value,
    job_id,
    list_of,
    maybe,
    moment,
    one_of,
    record,
    run_name,
    text,
)
from clusterctl.common.paths import is_label

#: States of jobs and runs, the worst first.
STATES = ("unknown", "lost", "failed", "stopped", "running", "starting", "succeeded", "dispatched")


class LeftOutNode(TypedDict):
    """A node of conf.py that does not take part in a run, and the reason given at the start."""

    node: int
    message: str


class Membership(TypedDict, total=False):
    """A run as one node knows it: when it started, its nodes, and the name it was given. Without a run it is None."""

    run: str | None
    name: str | None
    started: float | None
    members: list[int] | None
    left_out: list[LeftOutNode] | None


class RunWarning(TypedDict):
    """A warning about a run, see `common.events.RunWarning`."""

    kind: str
    message: str


class DroppedCut(TypedDict):
    """The last checkpoint or model that was not saved at its time, see `common.events.CutDropped`."""

    t: float
    message: str
    trainers: list[int]
    saves: list[str]


class KeepBestAnswer(TypedDict):
    """The metric of KEEP_BEST; the direction is "max" or "min"."""

    name: str
    direction: str


class _RunFacts(Membership, total=False):
    warnings: list[RunWarning] | None
    arguments: list[str] | None
    env: dict[str, str] | None
    seconds: float | None
    keep_best: KeepBestAnswer | None
    trainers: list[dict[str, object]] | None


class RunAnswer(_RunFacts):
    """A run in the answer to `jobs`. `env` has the values to hide, `trainers` what this node's trainers reported."""

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


class NamedRun(TypedDict):
    """A run of some name, and when it started by the clock of the node."""

    job: str
    run: str
    t: float | None


class NamedAnswer(TypedDict):
    """The answer to `find_named`: the job whose id, prefix or directory was asked for, else the runs of this name."""

    job: str | None
    runs: list[NamedRun]


def label(value: object) -> bool:
    return isinstance(value, str) and is_label(value)


DROPPED_CUT = record(t=moment, message=text, trainers=list_of(count), saves=list_of(text))
WARNINGS = maybe(list_of(record(kind=text, message=text)))
MEMBERSHIP: Mapping[str, Shape] = {
    "name": maybe(label),
    "started": maybe(moment),
    "members": maybe(list_of(count)),
    "left_out": maybe(list_of(record(node=count, message=text))),
}
RUN = record(
    run=run_name,
    state=one_of(*STATES),
    warnings=WARNINGS,
    arguments=maybe(list_of(text)),
    env=maybe(each_value(text)),
    seconds=maybe(moment),
    keep_best=maybe(record(name=text, direction=one_of("max", "min"))),
    trainers=maybe(list_of(record())),
    **MEMBERSHIP,
)
JOB = record(
    job=job_id, runs=list_of(RUN), record=record(workspace=text, content=text, files=count, bytes=count, t=moment)
)
NAMED: Mapping[str, Shape] = {
    "job": maybe(job_id),
    "runs": list_of(record(job=job_id, run=run_name, t=maybe(moment))),
}
