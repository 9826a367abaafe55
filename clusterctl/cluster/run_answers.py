"""The schema of what nodes report about runs and jobs; for the checks of answers see `answers.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, get_args

from clusterctl.common.events import DroppedCut, RunWarning
from clusterctl.common.paths import is_label
from clusterctl.common.requests import JobId, RunName
from clusterctl.common.schema import Bound, Count, Moment, NotRequired

State = Literal["unknown", "lost", "failed", "stopped", "running", "starting", "succeeded", "dispatched"]
#: States of jobs and runs, the worst first.
STATES: tuple[str, ...] = get_args(State)
Label = Annotated[str, Bound("the name of a run", is_label)]


class LeftOutNode(TypedDict):
    """A node of conf.py that does not take part in a run, and the reason given at the start."""

    node: Count
    message: str


class MemberFacts(TypedDict, total=False):
    """A run as one node knows it: when it started, its nodes, and the name it was given."""

    name: Label | None
    started: Moment | None
    members: list[Count] | None
    left_out: list[LeftOutNode] | None


class Membership(MemberFacts):
    """A run, or None if a job has none."""

    run: NotRequired[RunName | None]


class DroppedCutAnswer(DroppedCut):
    """The last checkpoint or model that was not saved at its time."""

    t: Moment


class KeepBestAnswer(TypedDict):
    """The metric of KEEP_BEST."""

    name: str
    direction: Literal["max", "min"]


class RunAnswer(MemberFacts):
    """A run in the answer to `jobs`. `env` has the values to hide, `trainers` what this node's trainers reported."""

    run: RunName
    state: State
    warnings: NotRequired[list[RunWarning] | None]
    arguments: NotRequired[list[str] | None]
    env: NotRequired[dict[str, str] | None]
    seconds: NotRequired[Moment | None]
    keep_best: NotRequired[KeepBestAnswer | None]
    trainers: NotRequired[list[dict[str, Any]] | None]


class DispatchRecord(TypedDict):
    workspace: str
    content: str
    files: Count
    bytes: Count
    t: Moment


class JobAnswer(TypedDict):
    """One job on one node, in the answer to `jobs`."""

    job: JobId
    runs: list[RunAnswer]
    record: DispatchRecord


class JobsAnswer(TypedDict):
    jobs: list[JobAnswer]
