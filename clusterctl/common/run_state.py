"""The state of a run: one fold of its events, for its supervisors, the screen, reports and exports.

Pure, and bounded: it keeps no history. Curves, marks and logged numbers are folds of their own on the control side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar

from clusterctl.common.events import EndCause, RunWarning

#: An event of a run: `event`, `t`, `node`, and the fields of its kind, see `common.events`.
Event = Mapping[str, Any]
Key = tuple[str, int]
ENDED = ("stopped", "failed", "succeeded")
MOST = 1 << 60  # attempts


@dataclass
class ProcessState:
    """A process of a run. `restarts` counts its further attempts.

    `state` is "waiting", "starting", "ready" (a pserver), "running", "stalled", "restarting", or one of ENDED.
    """

    role: str
    rank: int
    state: str = "waiting"
    restarts: int = 0
    exit_code: int | None = None

    def enter(self, state: str, t: float) -> None:
        """Be in a state from time `t` on."""
        self.state = state


P = TypeVar("P", bound=ProcessState)


class RunState(Generic[P]):
    """Takes the events of one node, or with its `lead` those of all nodes of a run, interleaved in any order.

    `make` returns a process that an event is the first to name. `cause` is the first one that the lead gave for an
    order to stop. `waits_for` has the nodes and the trainers that the user has to fix, `cut_dropped` the last save that
    was not made at its time, until it is made up for. `model` and `checkpoint` are the tags of the newest complete
    ones. `ended` is the last event of the lead.
    """

    def __init__(self, make: Callable[[Event], P], *, lead: int | None = None) -> None:
        self._make = make
        self._lead = lead
        self.processes: dict[Key, P] = {}
        self.phase: str | None = None
        self.cause: EndCause | None = None
        self.waits_for: list[str] = []
        self.cut_dropped: Event | None = None
        self.warnings: Sequence[RunWarning] = []
        self.model: str | None = None
        self.checkpoint: str | None = None
        self.ended: Event | None = None

    def take(self, event: Event) -> None:
        """Take an event. Raises LookupError, TypeError or ValueError for one that is malformed."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def process(self, event: Event) -> P | None:
        """Return the process that an event is about, None if it is about none, one that never started, or an attempt
        that has been given up: that of a process which has moved may still report.
        """
        process = self.processes.get((str(event.get("role")), int(event.get("rank", -1))))
        return None if process is not None and int(event.get("attempt", MOST)) <= process.restarts else process

    # Events of a process.

    def _on_spawned(self, event: Event) -> None:
        """Take also a scheduler, for which no node has ranks, and a process that had ended."""
        key = (str(event["role"]), int(event["rank"]))
        process = self.processes.get(key)
        if process is None:
            process = self.processes[key] = self._make(event)
        elif self.process(event) is None:
            return
        process.restarts = int(event.get("attempt") or 1) - 1
        process.exit_code = None
        process.enter("starting", event["t"])

    def _on_ready(self, event: Event) -> None:
        self._enter(event, "ready")

    def _on_step(self, event: Event) -> None:
        self._enter(event, "running")

    def _on_stalled(self, event: Event) -> None:
        self._enter(event, str(event.get("state", "stalled")))

    def _enter(self, event: Event, state: str) -> None:
        process = self.process(event)
        if process is not None and process.exit_code is None:
            process.enter(state, event["t"])

    def _on_exited(self, event: Event) -> None:
        process = self.process(event)
        if process is None:
            return
        process.exit_code = event["exit_code"]
        failed = event["exit_code"] or event.get("unfinished")
        process.enter("stopped" if event["stopping"] else "failed" if failed else "succeeded", event["t"])

    def _on_restarting(self, event: Event) -> None:
        process = self.process(event)
        if process is not None:
            process.exit_code = None
            process.enter("restarting", event["t"])

    def _on_moved(self, event: Event) -> None:
        self._on_restarting(event)

    # Events of the run.

    def _on_phase(self, event: Event) -> None:
        self.phase = str(event["phase"])
        self.cause = self.cause or event.get("cause")
        if self.phase == "running":
            for process in self.processes.values():
                if process.state == "starting":
                    process.enter("running", event["t"])
        if self.phase == "stopping":
            self.waits_for = []

    def _on_held(self, event: Event) -> None:
        name = _subject(event)
        self.waits_for = [*(other for other in self.waits_for if other != name), name]

    def _on_lost(self, event: Event) -> None:
        if event.get("waits"):
            self._on_held(event)

    def _on_rejoined(self, event: Event) -> None:
        self.waits_for = [other for other in self.waits_for if other != _subject(event)]

    def _on_rolled_back(self, event: Event) -> None:
        """All processes restart, including those that were given up."""
        self.waits_for = [other for other in self.waits_for if other.startswith("node")]

    def _on_cut_dropped(self, event: Event) -> None:
        self.cut_dropped = {name: event[name] for name in ("t", "message", "trainers", "saves")}

    def _on_saved(self, event: Event) -> None:
        if not event.get("complete"):
            return
        kind = "checkpoint" if event.get("checkpoint") else "model"
        if kind == "checkpoint":
            self.checkpoint = str(event["tag"])
        else:
            self.model = str(event["tag"])
        if self.cut_dropped is not None:
            missing = [one for one in self.cut_dropped["saves"] if one != kind]
            self.cut_dropped = {**self.cut_dropped, "saves": missing} if missing else None

    def _on_warned(self, event: Event) -> None:
        warning: RunWarning = {"kind": event["kind"], "message": event["message"], "t": event["t"]}
        if "lost_s" in event:
            warning["lost_s"] = event["lost_s"]
        self._add_warning(warning)

    def _add_warning(self, warning: RunWarning) -> None:
        if all((one["kind"], one["message"]) != (warning["kind"], warning["message"]) for one in self.warnings):
            self.warnings = [*self.warnings, warning]

    def _on_ended(self, event: Event) -> None:
        """Take the end of the run. If there is a lead, the ends of other nodes are only those of their parts."""
        if self._lead is None or "not_heard_of" in event or event.get("node") == self._lead:
            self.ended = event
            for warning in event.get("warnings") or ():
                self._add_warning(warning)
            self.waits_for, self.cut_dropped = [], None


def _subject(event: Event) -> str:
    """Return the process or the node that an event is about."""
    return f"{event['role']}{event['rank']}" if "role" in event else f"node{event.get('node')}"
