"""The requests of the control machine to the agent of a node: one declaration each, which senders and operations share.

The agent reads every request with its declaration before any other code meets it, see `agent/main.py`. Fields that
requests add to these are ignored. The messages that follow a request are described where its operation is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, Union

from clusterctl.common.errors import AgentError
from clusterctl.common.file_transfer import KnownBytes
from clusterctl.common.paths import is_job_name
from clusterctl.common.schema import Bound, Count, Finite, NotRequired, SchemaError, at_most, reader

MOST_DIGITS = 9
MOST_PATH_CHARS = 4096
MOST_BUCKETS = 1000  # of a curve

#: The name of a job that is safe to use as a directory name.
JobId = Annotated[str, Bound("the id of a job", is_job_name)]
RunName = Annotated[
    str, Bound("the number of a run", lambda name: name.isascii() and name.isdigit() and len(name) <= MOST_DIGITS)
]
Role = Literal["pserver", "trainer", "scheduler"]
Name = Annotated[str, at_most(200)]
_NO_NUL = Bound("a text without NUL", lambda text: "\0" not in text)
Text = Annotated[str, _NO_NUL]
#: A job on a node: its id, a prefix of that, its directory, or the name of an adopted directory.
JobReference = Annotated[str, _NO_NUL, at_most(MOST_PATH_CHARS)]
#: A part of the name of a file or directory.
FileName = Annotated[
    str, Bound("the name of a file", lambda name: name not in ("", ".", "..") and not {"/", "\0"} & {*name})
]
Seconds = Annotated[float, Bound("a number of seconds", lambda value: value >= 0)]
#: Of a curve.
BucketCount = Annotated[int, Bound(f"from 1 to {MOST_BUCKETS}", lambda count: 0 < count <= MOST_BUCKETS)]
Port = Annotated[int, Bound("a port", lambda port: 0 < port < 1 << 16)]


class Envelope(TypedDict, total=False):
    """The fields that `Cluster.call` adds to any request.

    silence_s: the agent ends if nothing arrives for so long. stay: it serves another request afterwards. hold: it lasts
    as long as the processes that it has started. over: a scheduler has taken back the machines of the job, and this one
    only sees its files, see `jobs.run_state`.
    """

    silence_s: Seconds
    stay: bool
    hold: bool
    over: bool


class JobRequest(Envelope):
    """A request about a job."""

    ref: JobReference


class RunRequest(JobRequest):
    """A request about a run of a job; None or no `run`: the newest."""

    run: NotRequired[RunName | None]


# Dispatch.


class DispatchTemplate(Envelope):
    """The fields of a dispatch that are the same for all nodes.

    nonce: the name of this dispatch. nodes: their number. by: USER@HOST. workspace: its name. source, content: names
    of its place and of its files. complete: the job to complete on some of its nodes. rehash: trust no recorded hashes.
    plan: change nothing.
    """

    op: Literal["dispatch"]
    nonce: FileName
    nodes: Count
    by: str
    workspace: str
    source: str
    content: str
    complete: JobId | None
    rehash: bool
    plan: bool


class DispatchRequest(DispatchTemplate):
    """Make the job directory of a node.

    node: the number of the node. address, nic: of the node, for a relay, if conf.py has them. tree: the name of the
    wanted tree. base: the name of the tree to which the list of files has the changes, if it does not have all.
    manifest_bytes: of the compressed list, which follows the request.
    """

    node: Count
    address: Text | None
    nic: Text | None
    tree: str
    base: str | None
    manifest_bytes: Count


class AdoptRequest(Envelope):
    """Record the directory `job` in ROOT_DIR, which was deployed by hand, as a job of node `node` of `nodes`."""

    op: Literal["adopt"]
    job: JobId
    node: Count
    nodes: Count


class PruneChoice(TypedDict):
    """The jobs to remove, and the content, as pairs (kind, name)."""

    jobs: Sequence[str]
    content: Sequence[tuple[str, str]]


class PruneRequest(Envelope):
    """List all jobs and content; or, with `remove`, remove that."""

    op: Literal["prune"]
    remove: NotRequired[PruneChoice]


class SetupRequest(Envelope):
    """Make an environment with these requirements, which are lines of pip."""

    op: Literal["setup"]
    requirements: Sequence[str]


# Check and start.


class CheckRequest(Envelope):
    """Check this node and its connections to the others.

    python: PYTHON of conf.py. runtime: True if it needs the packages of our runtime. address, nic: of the node, if
    conf.py has them. port: the first of the job. count: of free ports that are needed. lead: True for the node that
    leads. gpus: their number, if conf.py has it.
    """

    op: Literal["check"]
    python: Text
    runtime: bool
    address: Text | None
    nic: Text | None
    port: Port
    count: Count
    lead: bool
    gpus: Count | None


class StartTemplate(Envelope):
    """The fields of a start that are the same for all nodes.

    ref: None: the job that ran last. nodes: the number of nodes in conf.py. python, runtime, nic, port: as for
    `CheckRequest`. pserver_port: report which ports are taken. host_name: report how the host name resolves. patient:
    wait for an earlier run that is ending.
    """

    op: Literal["start"]
    ref: JobReference | None
    nodes: Count
    python: Text
    runtime: bool
    nic: Text | None
    port: Port
    pserver_port: bool
    host_name: bool
    patient: NotRequired[bool]


class StartRequest(StartTemplate):
    """Start this node's part of a run.

    node: the number of the node. address, count, lead, gpus: as for `CheckRequest`. locked: a node on which this start
    holds the lock of the job already.
    """

    node: Count
    address: Text | None
    count: Count
    lead: bool
    gpus: Count | None
    locked: Count | None


class RejoinRequest(JobRequest):
    """Let this node rejoin a running run. address, nic: of the node, if conf.py has them."""

    op: Literal["rejoin"]
    address: Text | None
    nic: Text | None


class StopRequest(JobRequest):
    """End everything that belongs to a job.

    `because`: the reason that the record of its `run` gets, if that is the newest one and it is not the user's wish.
    """

    op: Literal["stop"]
    because: NotRequired[str]
    run: NotRequired[RunName]


class SaveRequest(JobRequest):
    """Make a checkpoint of the running run within `limit_s` seconds."""

    op: Literal["save"]
    limit_s: Seconds


class ExecRequest(Envelope):
    """Run a script of /bin/sh. Bytes of it that are not UTF-8 are surrogates. umask: the agent sets the account's."""

    op: Literal["exec"]
    script: Text
    umask: NotRequired[Count]


# Status and history.


class StatusRequest(Envelope):
    """Report on a run, None: the newest, of a job, None: the one that is meant. gpus: also on what uses the GPUs."""

    op: Literal["status"]
    ref: JobReference | None
    run: NotRequired[RunName | None]
    gpus: NotRequired[bool]


class JobsRequest(Envelope):
    """List all jobs and their runs."""

    op: Literal["jobs"]


class FindNamedRequest(JobRequest):
    """Find the job, or the runs, of this name."""

    op: Literal["find_named"]


class DiagnoseRequest(RunRequest):
    """Report how a run ended. spec: with its spec, and the versions of its packages."""

    op: Literal["diagnose"]
    spec: NotRequired[bool]


class CurvesRequest(RunRequest):
    """Send the curves of a run's figures, each with at most `buckets` buckets."""

    op: Literal["curves"]
    buckets: BucketCount


class EventsRequest(RunRequest):
    """Send the events of these kinds."""

    op: Literal["events"]
    kinds: Sequence[str]


class ContentsRequest(RunRequest):
    """Describe the files and packages of a run. list: name every file."""

    op: Literal["contents"]
    list: NotRequired[bool]


# Logs.


class LogSelection(TypedDict, total=False):
    """The log lines that are wanted, by default all.

    role, rank: of their processes. since: seconds since the epoch. tail: only so many of the last lines of each
    process. grep: a regular expression that they match.
    """

    role: str | None
    rank: Count | None
    since: Finite | None
    tail: Count | None
    grep: str | None


class LogsRequest(RunRequest, LogSelection):
    """Send the present lines of the logs. id: of the `ShownProcess` whose lines they are, not used by agents."""

    op: Literal["logs"]
    id: NotRequired[Count]


class Speaker(TypedDict):
    """The process whose lines are sent regardless of `grep`, at most `budget` a second."""

    role: str
    rank: Count
    budget: Seconds | None


class FollowSelection(LogSelection, total=False):
    """The news that is wanted: events, unless `events` is False, and lines, of each process `budget` a second."""

    budget: Seconds | None
    speaker: Speaker | None
    events: bool


class FollowRequest(RunRequest, FollowSelection):
    """Send events and log lines as they arrive. at, offsets: where to continue, in events and by process in logs."""

    op: Literal["follow"]
    at: NotRequired[Count]
    offsets: NotRequired[Mapping[str, Count]]


class ShownProcess(TypedDict):
    """A process whose lines, from the last `tail` ones on, are sent as those of the wish `id`."""

    id: Count
    role: str
    rank: Count
    tail: Count


# Checkpoints and models.


class FindCheckpointsRequest(JobRequest):
    """Find the checkpoints of a job. copies: also those that are known from copies of other nodes' pieces."""

    op: Literal["find_checkpoints"]
    copies: NotRequired[bool]


class FindModelsRequest(JobRequest):
    """Find the models of a job, as for `FindCheckpointsRequest`."""

    op: Literal["find_models"]
    copies: NotRequired[bool]


class SavedFile(TypedDict):
    """A file of a save, as its manifest describes it."""

    file: FileName
    bytes: Count
    sha256: str


class VerifyCheckpointRequest(JobRequest):
    """Verify these files of what a run saved as `tag`."""

    op: Literal["verify_checkpoint"]
    run: RunName
    tag: FileName
    files: Sequence[SavedFile]


class MergedModel(TypedDict):
    """The run and the step of a model that was merged on its node."""

    run: str
    step: int


class CopiesWanted(TypedDict):
    """The copies of pieces of the model `tag`, except the files that the control machine has.

    originals: also the pieces that the node has written. merged: only the merged model, if it is this one. parts: of
    files, which the control machine has.
    """

    tag: FileName
    have: Sequence[str]
    originals: NotRequired[bool]
    merged: NotRequired[MergedModel]
    parts: NotRequired[Sequence[KnownBytes]]


class CollectRequest(RunRequest):
    """Send the logs and outputs of a run, or only `copies`."""

    op: Literal["collect"]
    copies: NotRequired[CopiesWanted]


AgentRequest = Union[
    DispatchRequest,
    AdoptRequest,
    PruneRequest,
    SetupRequest,
    CheckRequest,
    StartRequest,
    RejoinRequest,
    StopRequest,
    SaveRequest,
    ExecRequest,
    StatusRequest,
    JobsRequest,
    FindNamedRequest,
    DiagnoseRequest,
    CurvesRequest,
    EventsRequest,
    ContentsRequest,
    LogsRequest,
    FollowRequest,
    FindCheckpointsRequest,
    FindModelsRequest,
    VerifyCheckpointRequest,
    CollectRequest,
]
REQUESTS: Mapping[str, Any] = {
    "dispatch": DispatchRequest,
    "adopt": AdoptRequest,
    "prune": PruneRequest,
    "setup": SetupRequest,
    "check": CheckRequest,
    "start": StartRequest,
    "rejoin": RejoinRequest,
    "stop": StopRequest,
    "save": SaveRequest,
    "exec": ExecRequest,
    "status": StatusRequest,
    "jobs": JobsRequest,
    "find_named": FindNamedRequest,
    "diagnose": DiagnoseRequest,
    "curves": CurvesRequest,
    "events": EventsRequest,
    "contents": ContentsRequest,
    "logs": LogsRequest,
    "follow": FollowRequest,
    "find_checkpoints": FindCheckpointsRequest,
    "find_models": FindModelsRequest,
    "verify_checkpoint": VerifyCheckpointRequest,
    "collect": CollectRequest,
}


def read_request(message: object) -> dict[str, Any]:
    """Return a request as it is declared. Raises AgentError that names the first malformed field."""
    op = message.get("op") if isinstance(message, dict) else None
    if not isinstance(op, str) or op not in REQUESTS:
        raise AgentError(f"the agent does not know {op!r:.60}", kind="usage")
    try:
        request: dict[str, Any] = reader(REQUESTS[op])(message)
    except SchemaError as exc:
        raise AgentError(f"the request {op} is malformed: {exc}", kind="usage") from exc
    return request
