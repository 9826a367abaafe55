"""The events that supervisors and the lead write to events.jsonl: the name and the fields of each.

Every line also has `v`, `t`, `seq` and `node`, and if it is about a process `role`, `rank` and `attempt`; see
`EventLog.record`. Names and fields are a contract: the control machine reads the logs of older and newer versions. A
reader accepts unknown fields and missing ones. Processes report further events (`step`, `pass`, `log`, `saved`, `nan`),
which are recorded as they come once their figures are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Union


class ExitFacts(TypedDict, total=False):
    """Facts about an exit, beside its code. `ours` are the indexes of the lines in `tail` that clusterctl wrote.

    `reason` is the reason that the message gives, as `clusterctl why` names it, `limit` the setting that was exceeded,
    `peers` the processes that did not answer. `unfinished` is the reason why a trainer's exit with code 0 is a failure:
    "not_connected" or "not_left". `uncaught` is the class of the exception that ended a trainer that had connected, ""
    if none did. `unsaid` means that it left the run without a message to the pservers. A trainer
    that left reports if it ever `pushed`, and the numbers of `losses` in its last pass: all, and those that are finite.
    """

    tail: Sequence[str]
    ours: Sequence[int]
    worked: bool
    pushes: int | None
    pushed: bool | None
    losses: Sequence[int]
    reason: str | None
    limit: str | None
    peers: Sequence[str]
    oom: bool
    stalled: bool
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


class _CauseFacts(ExitFacts, FailureFacts, total=False):
    node: int
    why: str
    role: str
    rank: int
    attempt: int
    t: float
    exit_code: int
    stopping: bool
    failures: int


class Cause(_CauseFacts):
    """The reason why a run ends.

    `kind` is "exit" (of a process), "node" (a supervisor could not do its part), "node_lost", "stalled", "time_limit"
    or "stopped" (by the user, unless `reason` is "start_failed" or "supervisor_ended"). `failures` counts those of a
    process that exceeded RESTARTS.
    """

    kind: str
    message: str


class ProcessOnNode(TypedDict):
    role: str
    rank: int
    node: int


# Of a process, recorded by the supervisor of its node.


class Spawned(TypedDict):
    event: Literal["spawned"]
    pid: int | None


class Ready(TypedDict):
    event: Literal["ready"]
    endpoint: str


class Exit(ExitFacts):
    """`stopping` if the process was meant to end."""

    exit_code: int
    stopping: bool
    message: str


class Exited(Exit):
    event: Literal["exited"]


class Usage(TypedDict):
    """The use of the CPU, in cores, on average since the last such event (1.0 is one core), and resident bytes."""

    event: Literal["usage"]
    cpu: float
    memory: int


class _StallFacts(TypedDict, total=False):
    stalled_s: float
    halted: bool
    unconnected: bool
    over: bool
    state: str


class Stalled(_StallFacts):
    """`halted` by a signal; `unconnected` before `connect()`; `over` when the process responds again, in `state`."""

    event: Literal["stalled"]
    message: str


# Of a supervisor.


class _LogFacts(TypedDict, total=False):
    level: str
    subject: int
    pids: Sequence[int]


class Log(_LogFacts):
    """`level` is "warning" or "error", or missing; `subject` is the node that it is about."""

    event: Literal["log"]
    message: str


class LogFailure(FailureFacts):
    """Something that a supervisor could not do, which ends the run."""

    event: Literal["log"]
    level: str
    message: str


class Paused(TypedDict):
    event: Literal["paused"]
    paused_s: float
    message: str


class TookOver(TypedDict):
    """`seen` is when the supervisor before this one last wrote its state."""

    event: Literal["took_over"]
    seen: float | None
    rebooted: bool
    message: str


# Of the run, recorded by the lead.


class _PhaseFacts(TypedDict, total=False):
    cause: Cause


class Phase(_PhaseFacts):
    event: Literal["phase"]
    phase: str


class _SuspectFacts(TypedDict, total=False):
    silent_s: float
    message: str


class Suspect(_SuspectFacts):
    event: Literal["suspect"]
    node: int | None


class _LossFacts(TypedDict, total=False):
    why: str
    silent_s: float | None
    closed_s: float | None
    waits: bool
    lost_node: int | None
    role: str
    rank: int


class Lost(_LossFacts):
    """A node, or a trainer that the others continue without. `waits` if the run waits for the node.

    The node had been silent for `silent_s`, or its connection had been closed for `closed_s`.

    A node that has lost the lead records itself as `node` and the lead's as `lost_node`.
    """

    event: Literal["lost"]
    node: int
    message: str


class _RejoinFacts(TypedDict, total=False):
    role: str
    rank: int


class Rejoined(_RejoinFacts):
    """A node that was silent, or a process that was held."""

    event: Literal["rejoined"]
    node: int


class Restarting(ProcessOnNode):
    """`count` such as "restart 1 of 3"."""

    event: Literal["restarting"]
    attempt: int
    in_s: float
    message: str
    exit_code: int
    count: str


class Held(ProcessOnNode):
    """A trainer that exceeded RESTARTS, and waits for `start --rejoin`."""

    event: Literal["held"]
    message: str


class StateLost(ProcessOnNode):
    """A trainer has no state that fits the servers' values; a roll back follows."""

    event: Literal["state_lost"]
    message: str


class CutDropped(TypedDict):
    """Nothing was saved at its time, because pushes or the states of these `trainers`, if any, did not come.

    `saves` is what is missing: "checkpoint", "model" or both.
    """

    event: Literal["cut_dropped"]
    message: str
    trainers: Sequence[int]
    saves: Sequence[str]


class RolledBack(TypedDict):
    """`processes` restart from checkpoint `tag`, or from the beginning; `whole` if these are all processes."""

    event: Literal["rolled_back"]
    epoch: int
    tag: str | None
    step: int
    whole: bool
    processes: Sequence[str]


class _StandstillFacts(TypedDict, total=False):
    stalled_s: float
    over: bool


class Standstill(_StandstillFacts):
    event: Literal["standstill"]
    message: str


class _SaveFacts(TypedDict, total=False):
    checkpoint: bool


class Saved(_SaveFacts):
    """All pservers have written their pieces."""

    event: Literal["saved"]
    tag: str
    step: int | None
    complete: bool


class _CopyFacts(TypedDict, total=False):
    checkpoint: bool


class Copied(_CopyFacts):
    """The pieces of a complete save, with these `bytes` in all, are on a second node, or on as many as COPIES says."""

    event: Literal["copied"]
    tag: str
    bytes: int
    in_s: float


class Copying(TypedDict):
    """All processes have ended; the end of the run waits for the copies of its last save, at most for `limit_s`."""

    event: Literal["copying"]
    tag: str
    limit_s: float


class RunWarning(TypedDict):
    """A warning about a run, however it ends. `kind` is a name such as "no_push"."""

    kind: str
    message: str


class _WarningFacts(TypedDict, total=False):
    subject: int


class Warned(_WarningFacts):
    """A warning of the run, recorded once for each kind and message; `subject` is the node that it is about."""

    event: Literal["warned"]
    kind: str
    message: str


class _EndFacts(TypedDict, total=False):
    not_heard_of: Sequence[int]
    warnings: Sequence[RunWarning]


class Ended(_EndFacts):
    """`not_heard_of` are the nodes that did not report that their processes have ended.

    `warnings` are all of the run.
    """

    event: Literal["ended"]
    state: str
    cause: Cause | None


Event = Union[
    Copied,
    Copying,
    CutDropped,
    Ended,
    Exited,
    Held,
    Log,
    LogFailure,
    Lost,
    Paused,
    Phase,
    Ready,
    Rejoined,
    Restarting,
    RolledBack,
    Saved,
    Spawned,
    Stalled,
    Standstill,
    StateLost,
    Suspect,
    TookOver,
    Usage,
    Warned,
]
