"""The documents of commands about nodes, and what all documents have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from clusterctl.cluster import NodeOutcome
from clusterctl.cluster.node_facts import ShownFacts
from clusterctl.common.schema import Count, NotRequired, Record
from clusterctl.errors import ClusterctlError, ErrorDocument
from clusterctl.prune import OldJob, UnusedContent

R = TypeVar("R")
T = TypeVar("T")


class Printed(TypedDict):
    """The keys that the command line adds to a document. A command that failed altogether prints nothing else."""

    schema: str  # "clusterctl/1"
    error: NotRequired[ErrorDocument]


class NodeHead(TypedDict):
    """A node in a document."""

    node: Count
    host: str
    ok: bool  # the command succeeded there


class FailedNode(NodeHead):
    """A node on which the command failed."""

    error: ErrorDocument
    seconds: NotRequired[float]  # of `dispatch` and `setup`


def head(outcome: NodeOutcome[Any]) -> NodeHead:
    return {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}


def failed(outcome: NodeOutcome[Any], error: ClusterctlError) -> FailedNode:
    return {"node": outcome.node.id, "host": outcome.node.where, "ok": False, "error": error.to_json()}


def by_node(outcomes: Iterable[NodeOutcome[T]], row: Callable[[NodeHead, T], R]) -> list[R | FailedNode]:
    """Return the row of each node, made of its head and its answer; that of one that failed has the error instead."""
    return [
        row(head(outcome), outcome.get()) if outcome.error is None else failed(outcome, outcome.error)
        for outcome in outcomes
    ]


class HostKeyDocument(TypedDict):
    node: Count
    host: str
    type: str
    fingerprint: str
    state: str  # known, unknown, recorded, changed or revoked


class TrustDocument(TypedDict):
    nodes: list[HostKeyDocument]


class CheckedNode(NodeHead, ShownFacts):
    """A node of `check`; `ok` if nothing on it blocks a start. One that did not answer has an `error` and no facts."""

    seconds: float
    error: NotRequired[ErrorDocument]
    half_dispatched: NotRequired[Count]  # leftovers of interrupted dispatches
    clock_ahead_s: NotRequired[float]
    clock_error_s: NotRequired[float]  # half the round trip


@dataclass(frozen=True)
class FailedPair(Record):
    """A failed attempt of a node to reach another one at this address and port."""

    from_: Count
    to: Count
    address: str
    port: Count
    outcome: str  # silent, refused, no_route, mute or stranger


@dataclass(frozen=True)
class Pairs(Record):
    """Counts of ordered pairs of nodes whose second node listens: all pairs, those tried, and those that work."""

    possible: Count
    tried: Count
    ok: Count
    failed: tuple[FailedPair, ...]


class FindingDocument(TypedDict):
    check: str
    severity: str  # "stops" (it blocks `start`) or "warns"
    nodes: list[Count]  # none: it is about this machine
    message: str
    hint: str | None


@dataclass(frozen=True)
class CheckDocument(Record):
    nodes: tuple[CheckedNode, ...]
    pairs: Pairs
    findings: tuple[FindingDocument, ...]


class EnvironmentDocument(TypedDict):
    """The Python environment of nodes of one kind."""

    python: str
    machine: str
    packages: dict[str, str]  # name to version
    chosen_by: str | None  # a node, `this machine` or the lock file; null if the nodes already had it
    relayed: bool
    nodes: list[Count]


class PreparedNode(NodeHead):
    seconds: float
    environment: str
    built: bool
    built_by: str | None  # `clusterctl`, or `uv` and its version; null if it was not built now
    uv_problem: str | None  # why uv could not build it
    bytes_sent: Count


class SetupDocument(TypedDict):
    requirements: list[str]  # with a lock file, all packages that it lists
    lock: str | None  # the name of the lock file
    environments: list[EnvironmentDocument]
    nodes: list[PreparedNode | FailedNode]


class DispatchedNode(NodeHead):
    dir: str  # absolute
    kept: bool  # it already had all of it under this id
    files_sent: Count
    bytes_received: Count
    bytes_sent: Count  # from here, possibly compressed; 0 for a node that got its bytes from another one
    bytes_copied: Count  # of unchanged files, copied on the node
    copy_seconds: float
    seconds: float


class DispatchDocument(TypedDict):
    job: str
    job_workspace: str  # the directory in a form valid on every node
    nodes: list[DispatchedNode | FailedNode]


class FileToSend(TypedDict):
    path: str
    bytes: Count


class NodePlan(NodeHead):
    job: str | None  # the job that it keeps
    send: list[FileToSend]
    delete: list[str]
    bytes: Count


class IgnoredPath(TypedDict):
    """A path that is not sent, and the rule that says so."""

    path: str
    rule: str
    source: str
    line: Count
    reason: str


class DispatchPlan(TypedDict):
    """The document of `dispatch --plan`."""

    nodes: list[NodePlan | FailedNode]
    ignored: list[IgnoredPath]


@dataclass(frozen=True, kw_only=True)
class NodeOutputDocument(Record):
    """The output of a command or a task on one node; `error` if it did not answer, or the task failed there."""

    OMITTED = ("error",)

    node: Count
    host: str
    seconds: float
    exit_code: int | None  # null if it did not end; of a task that failed: that of its last command, else 1
    error: ErrorDocument | None = None
    stdout: str
    stderr: str
    dropped_bytes: Count  # of both streams


@dataclass(frozen=True, kw_only=True)
class ExecDocument(Record):
    OMITTED = ("job",)

    job: str | None = None  # with `--in-job`
    nodes: tuple[NodeOutputDocument, ...]


@dataclass(frozen=True)
class TaskDocument(Record):
    task: str
    nodes: tuple[NodeOutputDocument, ...]


class TaskEntry(TypedDict):
    name: str
    aliases: list[str]
    summary: str


class TaskListDocument(TypedDict):
    """The document of `task --list`."""

    file: str
    tasks: list[TaskEntry]


@dataclass(frozen=True)
class PruneDocument(Record):
    jobs: tuple[OldJob, ...]
    content: tuple[UnusedContent, ...]
    bytes: Count  # the total to remove
    removed: bool
