"""The events of a run as values, one class for each kind. Fields that a kind may lack are None."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from clusterctl.common.schema import SchemaError, readers


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run; this class itself is for kinds that this version does not know.

    `name` is the kind, `t` the time in seconds since the epoch, by the clock of `node`, which recorded it. An event of
    a process has its `role`, `rank` and `attempt`, the number of its start from 1. `raw` has all fields as recorded.
    """

    name: str
    t: float
    node: int | None = None
    role: str | None = None
    rank: int | None = None
    attempt: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def process(self) -> str | None:
        """The process, such as "trainer0"; None for an event of a node or of the run."""
        return None if self.role is None else f"{self.role}{self.rank}"


# Events of a process.


@dataclass(frozen=True, kw_only=True)
class Spawned(Event):
    """A process was started."""

    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ready(Event):
    """A process is ready; a pserver serves at `endpoint`."""

    endpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """The work of a trainer or a pserver, at most once a second.

    `loss` is the mean since the last such event; `compute`, `wait` and `wire` are shares of a trainer's time.
    """

    step: int
    pass_: int | None = None
    passes: int | None = None
    loss: float | None = None
    samples: int | None = None
    samples_per_s: float | None = None
    compute: float | None = None
    wait: float | None = None
    wire: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pass(Event):
    """A trainer has finished a pass, in `seconds`."""

    pass_: int
    step: int | None = None
    passes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Log(Event):
    """The numbers of `ps.log`, as `values`, or a `message` of clusterctl, of level "warning" or "error" or without."""

    values: Mapping[str, float] | None = None
    weight: float | None = None
    step: int | None = None
    pass_: int | None = None
    message: str | None = None
    level: str | None = None


@dataclass(frozen=True, kw_only=True)
class Nan(Event):
    """A loss, a gradient or a value received as float16 is not finite: `what`, and the `action` that ON_NAN says."""

    message: str
    what: str | None = None
    action: str | None = None
    step: int | None = None
    pass_: int | None = None
    skipped: int | None = None


@dataclass(frozen=True, kw_only=True)
class Usage(Event):
    """The CPU of a process since the last such event, in cores, and its resident memory in bytes."""

    cpu: float
    memory: int


@dataclass(frozen=True, kw_only=True)
class Stalled(Event):
    """A process does not respond, for `stalled_s`; `over` when it does again. It may be `halted` by a signal."""

    message: str
    stalled_s: float | None = None
    halted: bool | None = None
    over: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Exited(Event):
    """A process has ended; `stopping` if it was meant to. `tail` are its last lines."""

    exit_code: int
    stopping: bool
    message: str
    tail: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Restarting(Event):
    """A process restarts in `in_s` seconds; `count` such as "restart 1 of 3"."""

    message: str
    in_s: float
    count: str
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Held(Event):
    """A trainer exceeded RESTARTS and waits for `clusterctl start --rejoin`."""

    message: str


@dataclass(frozen=True, kw_only=True)
class StateLost(Event):
    """A trainer has no state that fits the values on the pservers; a roll back follows."""

    message: str


# Events of a node.


@dataclass(frozen=True, kw_only=True)
class Suspect(Event):
    """A node has been silent for `silent_s`."""

    silent_s: float | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lost(Event):
    """A node is lost, or a trainer that the others continue without; `waits` if the run waits for the node."""

    message: str
    silent_s: float | None = None
    lost_node: int | None = None
    waits: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Rejoined(Event):
    """A node that was silent is back, or a process that was held. If its processes have moved, `message` says so."""

    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """A supervisor did not run for `paused_s`, as on a suspended machine."""

    paused_s: float
    message: str


@dataclass(frozen=True, kw_only=True)
class TookOver(Event):
    """Another supervisor took over a node; `rebooted` if the machine has restarted."""

    message: str
    rebooted: bool | None = None
    seen: float | None = None


# Events of the run.


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """The run enters a phase: gathering, pservers, trainers, running, finishing or stopping."""

    phase: str
    cause: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A model, or a `checkpoint`, was saved under `tag`; `complete` once all pservers have written their pieces."""

    tag: str
    step: int | None = None
    complete: bool | None = None
    checkpoint: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Copying(Event):
    """The end of the run waits for the copies of its last save, at most for `limit_s`."""

    tag: str
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Copied(Event):
    """The pieces of a save, `bytes` in all, stand on other nodes, too."""

    tag: str
    bytes: int
    in_s: float
    checkpoint: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CutDropped(Event):
    """Nothing was saved at its time: `saves` is what is missing, `trainers` those that did not take part."""

    message: str
    trainers: tuple[int, ...]
    saves: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Moved(Event):
    """A process of a lost node, `from_node`, starts on another."""

    from_node: int


@dataclass(frozen=True, kw_only=True)
class ResumedBy(Event):
    """The run continues one that was lost with its machines. `by` is who keeps it, as USER@HOST."""

    message: str
    by: str | None


@dataclass(frozen=True, kw_only=True)
class RolledBack(Event):
    """The `processes`, all if `whole`, restart from checkpoint `tag`, or from the beginning."""

    step: int
    epoch: int
    whole: bool
    processes: tuple[str, ...]
    tag: str | None = None


@dataclass(frozen=True, kw_only=True)
class Standstill(Event):
    """No trainer has made a step for `stalled_s`; `over` when one does again."""

    message: str
    stalled_s: float | None = None
    over: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """A warning of the run; `kind` is a name such as "tables_not_loaded".

    `lost_s`: of a node that was lost, the seconds between its last message and `t`.
    """

    kind: str
    message: str
    lost_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The run is over: `state` is succeeded, failed or stopped. `not_heard_of` are nodes that did not report."""

    state: str
    cause: Mapping[str, Any] | None = None
    not_heard_of: tuple[int, ...] | None = None


# Read from what nodes record.

#: The class of each event, by the name that nodes record: `took_over` for TookOver.
KINDS: Mapping[str, type[Event]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in Event.__subclasses__()
}


def event_of(raw: Mapping[str, Any]) -> Event:
    """Return an event as a value. One whose fields do not fit, since programs write events, becomes a plain `Event`."""
    name = str(raw["event"])
    kind = KINDS.get(name, Event)
    values = _values(kind, raw)
    if values is None:
        kind, values = Event, _values(Event, raw) or {}
    return kind(**{**values, "name": name, "t": float(raw["t"]), "raw": dict(raw)})


def _values(kind: Any, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an event; None if a required one is missing or malformed."""
    values: dict[str, Any] = {}
    of_fields = readers(kind)
    for one in fields(kind):
        if one.name in ("name", "t", "raw"):
            continue
        try:
            value = of_fields[one.name](raw.get(one.name.rstrip("_")))
        except SchemaError:
            value = None
        if value is not None:
            values[one.name] = value
        elif one.default is MISSING:
            return None
    return values
