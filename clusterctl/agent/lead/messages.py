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
    Copied,
    Copy,
    CutOrder,
    CutReport,
    DropModels,
    Keep,
    Kept,
    Logged,
    Merge,
    Saved,
    SaveWanted,
    Written,
)
from clusterctl.common.events import Cause
from clusterctl.common.schema import Bound, Count, typed

#: Other nodes put it into the environment of their processes.
Place = Annotated[str, Bound("HOST:PORT", re.compile(r"[\w.:%\[\]-]{1,255}:\d{1,5}", re.ASCII).fullmatch)]

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


class _HelloFacts(TypedDict, total=False):
    epoch: Count
    endpoints: Mapping[str, Place]
    pieces: Place
    new: bool


class _IdleFacts(TypedDict, total=False):
    epoch: Count
    attempts: Mapping[str, Count]
    stopping: bool


class _OfProcess(TypedDict, total=False):
    attempt: Count


class _ExitFacts(_OfProcess, total=False):
    """See `events.ExitFacts`."""

    t: float
    message: str
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
    hopeless: bool
    port_taken: bool
    unfinished: str | None
    uncaught: str
    unsaid: bool


class _FailureFacts(_OfProcess, total=False):
    """See `events.FailureFacts`; of a process if it has a name."""

    t: float
    errno: str | None
    command: str
    path: str
    timed_out: bool
    role: str
    rank: Count
    tail: Sequence[str]
    ours: Sequence[Count]


class _PaceFacts(TypedDict, total=False):
    for_s: float
    message: str
    awaits: Sequence[str]


# Reports.


class Hello(_HelloFacts):
    """A supervisor joins an epoch; `new` if it replaces one that is gone. `pieces` is its piece server."""

    do: Literal["hello"]


class Ready(_OfProcess):
    do: Literal["ready"]
    role: str
    rank: Count
    endpoint: Place


class Running(_OfProcess):
    do: Literal["running"]
    role: str
    rank: Count


class Exited(_ExitFacts):
    do: Literal["exited"]
    role: str
    rank: Count
    exit_code: int
    stopping: bool


class Failed(_FailureFacts):
    """Something other than the exit of a process ends the run."""

    do: Literal["failed"]
    message: str


class _Why(TypedDict, total=False):
    message: str
    signal: str


class StopWanted(_Why):
    """The run is to stop. `message` is the reason, or `signal` what ended the supervisor, unless the user asked."""

    do: Literal["stop_wanted"]


class Rejoin(TypedDict):
    """The user has fixed this node; its trainers that were given up may restart."""

    do: Literal["rejoin"]


class Idle(_IdleFacts):
    """Nothing of the run is left on a node."""

    do: Literal["idle"]


class Pace(_PaceFacts):
    """`pace` is "moves", "busy" (a pserver that writes or reads a save), "waits" or "stalled". If it waits, it has done
    so for `for_s`; `message` gives the reason, and `awaits` has the names of the processes that it waits for, as far
    as it knows them.
    """

    do: Literal["pace"]
    role: str
    rank: Count
    attempt: Count
    pace: str


class StateLost(TypedDict):
    """A trainer cannot go on: the servers are at a push of which it has no state."""

    do: Literal["state_lost"]
    role: str
    rank: Count
    attempt: Count
    message: str


class Warned(TypedDict):
    """A warning of the run that a supervisor, or a process on its node, has. Leads of older versions do not know it."""

    do: Literal["warning"]
    kind: str
    message: str


Report = Union[
    Hello,
    Ready,
    Running,
    Exited,
    Failed,
    StopWanted,
    Rejoin,
    Idle,
    Saved,
    Kept,
    Written,
    Copied,
    Logged,
    CutReport,
    SaveWanted,
    Pace,
    StateLost,
    Warned,
]


# Orders.


class _Pieces(TypedDict, total=False):
    pieces: Mapping[str, str]


class Whereabouts(_Pieces):
    """The endpoints of the pservers by rank, and of all programs that listen, by the name of the process.

    When pservers start, also those of the piece servers by node.
    """

    pservers: Sequence[str]
    endpoints: Mapping[str, str]


class Spawn(Whereabouts):
    do: Literal["spawn"]
    epoch: int
    role: str


class _Recovery(TypedDict, total=False):
    left: Mapping[str, int]


class Recovery(_Recovery):
    """JSON of `run_spec.Recovery`."""

    tag: str | None
    step: int


class Again(TypedDict):
    """A new epoch: processes of these attempts restart."""

    do: Literal["again"]
    epoch: int
    attempts: Mapping[str, int]
    in_s: float
    recover: Recovery


class Respawn(Whereabouts):
    do: Literal["respawn"]
    role: str
    rank: int
    attempt: int
    in_s: float


class Shrink(TypedDict):
    do: Literal["shrink"]
    ranks: Sequence[int]


class Left(TypedDict):
    """These trainers have left the run, which the pservers do not know yet."""

    do: Literal["left"]
    ranks: Sequence[int]


class FinishPservers(TypedDict):
    do: Literal["finish"]
    epoch: int


class Stacks(TypedDict):
    do: Literal["stacks"]
    message: str


class Awaited(TypedDict):
    """Others have been waiting for this trainer for too long: watch it, even if it has never sent a message."""

    do: Literal["awaited"]
    role: str
    rank: int
    attempt: int


class Stop(TypedDict):
    do: Literal["stop"]
    cause: Cause | None


class End(TypedDict):
    do: Literal["end"]
    state: str
    cause: Cause | None


Order = Union[
    Spawn,
    Again,
    Respawn,
    Shrink,
    Left,
    FinishPservers,
    Keep,
    DropModels,
    Copy,
    Merge,
    CutOrder,
    Stacks,
    Awaited,
    Stop,
    End,
]
ORDERS: Mapping[str, Callable[..., Order]] = {
    "spawn": Spawn,
    "again": Again,
    "respawn": Respawn,
    "shrink": Shrink,
    "left": Left,
    "finish": FinishPservers,
    "keep": Keep,
    "drop_models": DropModels,
    "copy": Copy,
    "merge": Merge,
    "cut": CutOrder,
    "stacks": Stacks,
    "awaited": Awaited,
    "stop": Stop,
    "end": End,
}


def order_of(message: Mapping[str, Any]) -> Order | None:
    """The order in a message of the lead; None if only a newer version knows it."""
    kind = ORDERS.get(message["do"])
    return kind(message) if kind else None


def cause_of(report: Exited | Failed | StateLost, kind: str, node: int) -> Cause:
    """The cause of the end of a run, made from a report: its fields, but not its name."""
    fields = {key: value for key, value in report.items() if key != "do"}
    return typed(Cause, {"message": "failed", **fields, "kind": kind, "node": node})


def stop_wanted(reason: str | None, signal: str | None = None) -> StopWanted:
    if reason:
        return {"do": "stop_wanted", "message": reason}
    return {"do": "stop_wanted", "signal": signal} if signal else {"do": "stop_wanted"}


def cause_of_stop(message: StopWanted, node: int) -> Cause:
    if "message" in message:
        return {"kind": "stopped", "reason": "start_failed", "message": message["message"]}
    if "signal" in message:
        words = f"the supervisor of node{node} was ended by {message['signal']:.20}, sent from outside clusterctl"
        return {"kind": "stopped", "reason": "supervisor_ended", "node": node, "message": words}
    return {"kind": "stopped", "message": "stopped by the user"}
