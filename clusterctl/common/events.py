"""The events that supervisors and the lead write to events.jsonl: the name and the fields of each.

Every line also has `v`, `t`, `seq` and `node`, and if it is about a process `role`, `rank` and `attempt`; see
`EventLog.record`. Names and fields are a contract: the control machine reads the logs of older and newer versions. A
reader accepts unknown fields and missing ones. Processes report further events (`step`, `pass`, `log`, `saved`, `nan`),
which are recorded as they come once their figures are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Union

from clusterctl.common.schema import Count, Moment, NotRequired


class ExitFacts(TypedDict, total=False):
    """Facts about an exit, beside its code. `ours` are the indexes of the lines in `tail` that clusterctl wrote.

    `reason` is the reason that the message gives, as `clusterctl why` names it, `limit` the setting that was exceeded,
    `peers` the processes that did not answer. `unfinished` is the reason why a trainer's exit with code 0 is a failure:
    "not_connected" or "not_left". `uncaught` is the class of the exception that ended a trainer that had connected, ""
    if none did. `unsaid` means that it left the run without a message to the pservers. `fenced` means that its node's
    guardian killed it, because the lead had not answered for too long. A trainer that left reports if it ever `pushed`,
    and the numbers of `losses` in its last pass: all, and those that are finite.
    """

    tail: Sequence[str]
    ours: Sequence[Count]
    worked: bool
    pushes: Count | None
    pushed: bool | None
    losses: Sequence[Count]
    reason: str | None
    limit: str | None
    peers: Sequence[str]
    oom: bool
    stalled: bool
    fenced: bool
    hopeless: bool
    port_taken: bool
    unfinished: str | None
    uncaught: str
    unsaid: bool


class FailureFacts(TypedDict, total=False):
    """Facts about a failure other than an exit: the name of a system error, and the command or path it is about.

    `timed_out` if a process was still running, but was not ready or did not end in time.
    """

    errno: str | None
    command: str
    path: str
    timed_out: bool


class EndCause(ExitFacts, FailureFacts):
    """The reason why a run ends.

    `kind` is "exit" (of a process), "node" (a supervisor could not do its part), "node_lost", "stalled", "time_limit"
    or "stopped" (by the user, unless `reason` is "start_failed" or "supervisor_ended"). `failures` counts those of a
    process that exceeded RESTARTS.
    """

    kind: str
    message: str
    node: NotRequired[int]
    why: NotRequired[str]
    role: NotRequired[str]
    rank: NotRequired[int]
    attempt: NotRequired[int]
    t: NotRequired[float]
    exit_code: NotRequired[int]
    stopping: NotRequired[bool]
    failures: NotRequired[int]


class ProcessOnNode(TypedDict):
    role: str
    rank: int
    node: int


# Of a process, recorded by the supervisor of its node.


class SpawnedEvent(TypedDict):
    event: Literal["spawned"]
    pid: int | None


class ReadyEvent(TypedDict):
    event: Literal["ready"]
    endpoint: str


class Exit(ExitFacts):
    """`stopping` if the process was meant to end."""

    exit_code: int
    stopping: bool
    message: str


class ExitedEvent(Exit):
    event: Literal["exited"]


class UsageEvent(TypedDict):
    """The use of the CPU, in cores, on average since the last such event (1.0 is one core), and resident bytes."""

    event: Literal["usage"]
    cpu: float
    memory: int


class StalledEvent(TypedDict):
    """`halted` by a signal; `unconnected` before `connect()`; `over` when the process responds again, in `state`."""

    event: Literal["stalled"]
    message: str
    stalled_s: NotRequired[float]
    halted: NotRequired[bool]
    unconnected: NotRequired[bool]
    over: NotRequired[bool]
    state: NotRequired[str]


# Of a supervisor.


class LogEvent(TypedDict):
    """`level` is "warning" or "error", or missing; `subject` is the node that it is about."""

    event: Literal["log"]
    message: str
    level: NotRequired[str]
    subject: NotRequired[int]
    pids: NotRequired[Sequence[int]]


class FailureLogEvent(FailureFacts):
    """Something that a supervisor could not do, which ends the run."""

    event: Literal["log"]
    level: str
    message: str


class PausedEvent(TypedDict):
    event: Literal["paused"]
    paused_s: float
    message: str


class TookOverEvent(TypedDict):
    """`seen` is when the supervisor before this one last wrote its state."""

    event: Literal["took_over"]
    seen: float | None
    rebooted: bool
    message: str


# Of the run, recorded by the lead.


class PhaseEvent(TypedDict):
    event: Literal["phase"]
    phase: str
    cause: NotRequired[EndCause]


class SuspectEvent(TypedDict):
    event: Literal["suspect"]
    node: int | None
    silent_s: NotRequired[float]
    message: NotRequired[str]


class LostEvent(TypedDict):
    """A node, or a trainer that the others continue without. `waits` if the run waits for the node.

    The node had been silent for `silent_s`, or its connection had been closed for `closed_s`.

    A node that has lost the lead records itself as `node` and the lead's as `lost_node`.
    """

    event: Literal["lost"]
    node: int
    message: str
    why: NotRequired[str]
    silent_s: NotRequired[float | None]
    closed_s: NotRequired[float | None]
    waits: NotRequired[bool]
    lost_node: NotRequired[int | None]
    role: NotRequired[str]
    rank: NotRequired[int]


class RejoinedEvent(TypedDict):
    """A node that was silent, or a process that was held."""

    event: Literal["rejoined"]
    node: int
    message: NotRequired[str]
    role: NotRequired[str]
    rank: NotRequired[int]


class RestartingEvent(ProcessOnNode):
    """`count` such as "restart 1 of 3"."""

    event: Literal["restarting"]
    attempt: int
    in_s: float
    message: str
    exit_code: int
    count: str


class HeldEvent(ProcessOnNode):
    """A trainer that exceeded RESTARTS, and waits for `start --rejoin`."""

    event: Literal["held"]
    message: str


class StateLostEvent(ProcessOnNode):
    """A trainer has no state that fits the servers' values; a roll back follows."""

    event: Literal["state_lost"]
    message: str


class DroppedCut(TypedDict):
    """Nothing was saved at its time, because pushes or the states of these `trainers`, if any, did not come.

    `saves` is what is missing: "checkpoint", "model" or both.
    """

    message: str
    trainers: Sequence[Count]
    saves: Sequence[str]


class CutDroppedEvent(DroppedCut):
    event: Literal["cut_dropped"]


class RolledBackEvent(TypedDict):
    """`processes` restart from checkpoint `tag`, or from the beginning; `whole` if these are all processes."""

    event: Literal["rolled_back"]
    epoch: int
    tag: str | None
    step: int
    whole: bool
    processes: Sequence[str]


class MovedEvent(ProcessOnNode):
    """A process of a lost node runs on `node` from now on; it ran on `from_node`."""

    event: Literal["moved"]
    from_node: int


class ResumedByEvent(TypedDict):
    """The run continues one that was lost with its machines, as `message` says. `by` is who keeps it, as USER@HOST."""

    event: Literal["resumed_by"]
    message: str
    by: str | None


class StandstillEvent(TypedDict):
    event: Literal["standstill"]
    message: str
    stalled_s: NotRequired[float]
    over: NotRequired[bool]


class SavedEvent(TypedDict):
    """All pservers have written their pieces."""

    event: Literal["saved"]
    tag: str
    step: int | None
    complete: bool
    checkpoint: NotRequired[bool]


class CopiedEvent(TypedDict):
    """The pieces of a complete save, with these `bytes` in all, are on a second node, or on as many as COPIES says."""

    event: Literal["copied"]
    tag: str
    bytes: int
    in_s: float
    checkpoint: NotRequired[bool]


class CopyingEvent(TypedDict):
    """All processes have ended; the end of the run waits for the copies of its last save, at most for `limit_s`."""

    event: Literal["copying"]
    tag: str
    limit_s: float


class RunWarning(TypedDict):
    """A warning about a run, however it ends. `kind` is a name such as "no_push".

    `t`: when it was recorded, if that was while the run lived. `lost_s`: of a node that was lost, the seconds between
    its last message and `t`.
    """

    kind: str
    message: str
    t: NotRequired[Moment]
    lost_s: NotRequired[Moment]


class WarnedEvent(RunWarning):
    """A warning of the run, recorded once for each kind and message; `subject` is the node that it is about."""

    event: Literal["warned"]
    subject: NotRequired[int]


class EndedEvent(TypedDict):
    """`not_heard_of` are the nodes that did not report that their processes have ended.

    `warnings` are all of the run.
    """

    event: Literal["ended"]
    state: str
    cause: EndCause | None
    not_heard_of: NotRequired[Sequence[int]]
    warnings: NotRequired[Sequence[RunWarning]]


Event = Union[
    CopiedEvent,
    CopyingEvent,
    CutDroppedEvent,
    EndedEvent,
    ExitedEvent,
    FailureLogEvent,
    HeldEvent,
    LogEvent,
    LostEvent,
    MovedEvent,
    PausedEvent,
    PhaseEvent,
    ReadyEvent,
    RejoinedEvent,
    RestartingEvent,
    ResumedByEvent,
    RolledBackEvent,
    SavedEvent,
    SpawnedEvent,
    StalledEvent,
    StandstillEvent,
    StateLostEvent,
    SuspectEvent,
    TookOverEvent,
    UsageEvent,
    WarnedEvent,
]
