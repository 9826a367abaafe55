"""The messages between supervisors and the lead: the name (`do`) and the fields of each.

They are a contract between versions: `start --rejoin` puts a new supervisor under an old lead. A message of another
version may lack optional fields and may have further ones. Reports, which go to the lead, are checked against these
declarations, see message_schema.py. Orders come from the lead, which is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Callable, Literal, TypedDict, Union

from clusterctl.agent.lead.saving.messages import (
    CopiedReport,
    CopySaveOrder,
    CutOrder,
    CutReport,
    DropModelsOrder,
    KeepOrder,
    KeptReport,
    LoggedReport,
    MergeModelOrder,
    SavedReport,
    SaveWantedReport,
    WrittenReport,
)
from clusterctl.common.events import EndCause, ExitFacts, FailureFacts, LostEvent, RunWarning
from clusterctl.common.schema import Bound, Count, NotRequired, typed

#: Other nodes put it into the environment of their processes.
Place = Annotated[str, Bound("HOST:PORT", re.compile(r"[\w.:%\[\]-]{1,255}:\d{1,5}", re.ASCII).fullmatch)]

PublicKey = Annotated[str, Bound("a CURVE key", re.compile(r"[!-~]{40}", re.ASCII).fullmatch)]

# Fields that reports share.


class ProcessName(TypedDict):
    """A process and its attempt."""

    role: str
    rank: Count
    attempt: Count


class LastLines(TypedDict):
    """The last lines of a process's output. `ours` are the indexes of those that clusterctl wrote."""

    tail: Sequence[str]
    ours: Sequence[Count]


# Reports.


class HelloReport(TypedDict):
    """A supervisor joins an epoch; `new` if it replaces one that is gone, `spare` if its processes have moved and it is
    there for others. `pieces` is its piece server. Where processes move, `keys` has the public keys of its own by name.
    """

    do: Literal["hello"]
    epoch: NotRequired[Count]
    endpoints: NotRequired[Mapping[str, Place]]
    pieces: NotRequired[Place]
    new: NotRequired[bool]
    spare: NotRequired[bool]
    keys: NotRequired[Mapping[str, PublicKey]]


class KeysReport(TypedDict):
    """The new public keys of processes that have moved to this node, by name."""

    do: Literal["keys"]
    keys: Mapping[str, PublicKey]


class ReadyReport(TypedDict):
    do: Literal["ready"]
    role: str
    rank: Count
    attempt: NotRequired[Count]
    endpoint: Place


class RunningReport(TypedDict):
    do: Literal["running"]
    role: str
    rank: Count
    attempt: NotRequired[Count]


class ExitReport(ExitFacts):
    do: Literal["exited"]
    role: str
    rank: Count
    attempt: NotRequired[Count]
    t: NotRequired[float]
    exit_code: int
    stopping: bool
    message: NotRequired[str]


class FailureReport(FailureFacts):
    """Something other than the exit of a process ends the run; it is about a process if it has the name of one."""

    do: Literal["failed"]
    message: str
    t: NotRequired[float]
    role: NotRequired[str]
    rank: NotRequired[Count]
    attempt: NotRequired[Count]
    tail: NotRequired[Sequence[str]]
    ours: NotRequired[Sequence[Count]]


class StopWantedReport(TypedDict):
    """The run is to stop. `message` is the reason, or `signal` what ended the supervisor, unless the user asked."""

    do: Literal["stop_wanted"]
    message: NotRequired[str]
    signal: NotRequired[str]


class RejoinReport(TypedDict):
    """The user has fixed this node; its trainers that were given up may restart."""

    do: Literal["rejoin"]


class IdleReport(TypedDict):
    """Nothing of the run is left on a node."""

    do: Literal["idle"]
    epoch: NotRequired[Count]
    attempts: NotRequired[Mapping[str, Count]]
    stopping: NotRequired[bool]


class PaceReport(ProcessName):
    """`pace` is "moves", "busy" (a pserver that writes or reads a save), "waits" or "stalled". If it waits, it has done
    so for `for_s`; `message` gives the reason, and `awaits` has the names of the processes that it waits for, as far
    as it knows them.
    """

    do: Literal["pace"]
    pace: str
    for_s: NotRequired[float]
    message: NotRequired[str]
    awaits: NotRequired[Sequence[str]]


class StateLostReport(ProcessName):
    """A trainer cannot go on: the servers are at a push of which it has no state."""

    do: Literal["state_lost"]
    message: str


class WarningReport(RunWarning):
    """A warning of the run that a supervisor, or a process on its node, has. Leads of older versions do not know it."""

    do: Literal["warning"]


Report = Union[
    HelloReport,
    KeysReport,
    ReadyReport,
    RunningReport,
    ExitReport,
    FailureReport,
    StopWantedReport,
    RejoinReport,
    IdleReport,
    SavedReport,
    KeptReport,
    WrittenReport,
    CopiedReport,
    LoggedReport,
    CutReport,
    SaveWantedReport,
    PaceReport,
    StateLostReport,
    WarningReport,
]


# Orders.


class Whereabouts(TypedDict):
    """The endpoints of the pservers by rank, and of all programs that listen, by the name of the process.

    When pservers start, also those of the piece servers by node. `keys` has the public key of each process by name, if
    processes may move.
    """

    pservers: Sequence[str]
    endpoints: Mapping[str, str]
    keys: NotRequired[Mapping[str, str]]
    pieces: NotRequired[Mapping[str, str]]


class KeysOrder(TypedDict):
    """The public keys of all processes by name: a trainer has moved, and has a new one."""

    do: Literal["keys"]
    keys: Mapping[str, str]


class SpawnOrder(Whereabouts):
    do: Literal["spawn"]
    epoch: int
    role: str


class RecoveryPoint(TypedDict):
    """JSON of `run_spec.Recovery`. If processes have moved, `pieces` has a `run_spec.PieceSource` for each file."""

    tag: str | None
    step: int
    left: NotRequired[Mapping[str, int]]
    pieces: NotRequired[Sequence[Mapping[str, Any]]]


class AgainOrder(TypedDict):
    """A new epoch: processes of these attempts restart. `moved` has the nodes of those that have moved, by name."""

    do: Literal["again"]
    epoch: int
    attempts: Mapping[str, int]
    in_s: float
    recover: RecoveryPoint
    moved: NotRequired[Mapping[str, int]]


class RespawnOrder(Whereabouts):
    do: Literal["respawn"]
    epoch: NotRequired[int]
    role: str
    rank: int
    attempt: int
    in_s: float


class ShrinkOrder(TypedDict):
    do: Literal["shrink"]
    ranks: Sequence[int]


class LeftOrder(TypedDict):
    """These trainers have left the run, which the pservers do not know yet."""

    do: Literal["left"]
    ranks: Sequence[int]


class FinishOrder(TypedDict):
    do: Literal["finish"]
    epoch: int


class StacksOrder(TypedDict):
    do: Literal["stacks"]
    message: str


class AwaitedOrder(ProcessName):
    """Others have been waiting for this trainer for too long: watch it, even if it has never sent a message."""

    do: Literal["awaited"]


class StopOrder(TypedDict):
    do: Literal["stop"]
    cause: EndCause | None


class EndOrder(TypedDict):
    do: Literal["end"]
    state: str
    cause: EndCause | None


Order = Union[
    KeysOrder,
    SpawnOrder,
    AgainOrder,
    RespawnOrder,
    ShrinkOrder,
    LeftOrder,
    FinishOrder,
    KeepOrder,
    DropModelsOrder,
    CopySaveOrder,
    MergeModelOrder,
    CutOrder,
    StacksOrder,
    AwaitedOrder,
    StopOrder,
    EndOrder,
]
ORDERS: Mapping[str, Callable[..., Order]] = {
    "keys": KeysOrder,
    "spawn": SpawnOrder,
    "again": AgainOrder,
    "respawn": RespawnOrder,
    "shrink": ShrinkOrder,
    "left": LeftOrder,
    "finish": FinishOrder,
    "keep": KeepOrder,
    "drop_models": DropModelsOrder,
    "copy": CopySaveOrder,
    "merge": MergeModelOrder,
    "cut": CutOrder,
    "stacks": StacksOrder,
    "awaited": AwaitedOrder,
    "stop": StopOrder,
    "end": EndOrder,
}


def order_of(message: Mapping[str, Any]) -> Order | None:
    """The order in a message of the lead; None if only a newer version knows it."""
    kind = ORDERS.get(message["do"])
    return kind(message) if kind else None


def cause_of(report: ExitReport | FailureReport | StateLostReport, kind: str, node: int) -> EndCause:
    """The cause of the end of a run, made from a report: its fields, but not its name."""
    fields = {key: value for key, value in report.items() if key != "do"}
    return typed(EndCause, {"message": "failed", **fields, "kind": kind, "node": node})


def stop_wanted(reason: str | None, signal: str | None = None) -> StopWantedReport:
    if reason:
        return {"do": "stop_wanted", "message": reason}
    return {"do": "stop_wanted", "signal": signal} if signal else {"do": "stop_wanted"}


def cause_of_stop(message: StopWantedReport, node: int) -> EndCause:
    if "message" in message:
        return {"kind": "stopped", "reason": "start_failed", "message": message["message"]}
    if "signal" in message:
        words = f"the supervisor of node{node} was ended by {message['signal']:.20}, sent from outside clusterctl"
        return {"kind": "stopped", "reason": "supervisor_ended", "node": node, "message": words}
    return {"kind": "stopped", "message": "stopped by the user"}


def lead_lost(
    node: int, lead: int, why: str, silent_s: float | None = None, closed_s: float | None = None
) -> tuple[LostEvent, EndCause]:
    """The event that `node` has lost the lead, and the cause of the end of its run if it ends by that."""
    message = f"the lead on node{lead} is lost: {why}"
    event: LostEvent = {"event": "lost", "node": node, "message": message, "why": why, "lost_node": lead}
    event["silent_s"], event["closed_s"] = silent_s, closed_s
    return event, {"kind": "node_lost", "node": lead, "message": message, "why": why}
