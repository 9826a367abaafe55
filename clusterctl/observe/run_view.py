"""The state of a run that is being followed: a pure fold of its events."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from clusterctl.cluster import NONSENSE
from clusterctl.cluster.answers import CAUSE, ENDED, Cause, own_word
from clusterctl.inventory import Node

PROGRESS = ("pass", "step", "loss", "samples_per_s", "compute", "wait", "wire")
CURVE_POINTS = 4000
#: An event of a run: `event`, `t`, `node`, and the fields of its kind.
Event = Mapping[str, Any]
MOST_PASSES = 1000  # kept until every trainer has logged its numbers


@dataclass
class ProcessView:
    node: Node
    role: str
    rank: int
    state: str = "waiting"
    exit_code: int | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.role}{self.rank}"


class LoggedPass(TypedDict):
    """The numbers that one trainer logged in a pass."""

    values: dict[str, float]
    weight: float


@dataclass(frozen=True)
class PassNumbers:
    """The numbers that trainers logged in a pass, averaged over trainers by weight."""

    pass_: int
    values: dict[str, float]
    trainers: int


class RunView:
    """Takes events of `nodes`, interleaved in any order; the first node leads. `ended` is the lead's final event.

    `doubts` are the problems that a user should know of even if the run succeeds.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._lead = nodes[0].id
        self._nodes = {node.id: node for node in nodes}
        self.phase = "gathering"
        self.ended: Event | None = None
        self.causes: list[Cause] = []
        self.failures: list[Event] = []
        self.doubts: list[str] = []
        self._finite = True
        self.curve: list[tuple[int, float]] = []
        self.saved: list[str] = []
        self.checkpoints: list[str] = []
        self.processes: dict[tuple[str, int], ProcessView] = {}
        for role in ("pserver", "trainer"):
            for node in nodes:
                for rank in node.pserver_ranks if role == "pserver" else node.trainer_ranks:
                    self.processes[role, rank] = ProcessView(node, role, rank)
        self._logged: dict[int, dict[int, LoggedPass]] = {}
        self._reported_passes: set[int] = set()

    @property
    def trainers(self) -> list[ProcessView]:
        return [process for process in self.processes.values() if process.role == "trainer"]

    @property
    def samples_per_s(self) -> float:
        return sum(t.numbers.get("samples_per_s") or 0.0 for t in self.trainers if t.state == "running")

    @property
    def loss(self) -> float | None:
        losses = [t.numbers["loss"] for t in self.trainers if t.numbers.get("loss") is not None]
        return sum(losses) / len(losses) if losses else None

    @property
    def step(self) -> int:
        return max((t.numbers.get("step") or 0 for t in self.trainers), default=0)

    @property
    def pass_(self) -> int:
        return max((t.numbers.get("pass") or 0 for t in self.trainers), default=0)

    def take(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            with contextlib.suppress(*NONSENSE):  # a process or a node may send malformed events
                handler(event)

    def _process(self, event: Event) -> ProcessView | None:
        return self.processes.get((str(event.get("role")), int(event.get("rank", -1))))

    def _on_phase(self, event: Event) -> None:
        self.phase = str(event["phase"])
        if event.get("cause") and CAUSE(event["cause"]):
            self.causes.append(event["cause"])
        if self.phase == "running":
            for process in self.processes.values():
                if process.state == "starting":
                    process.state = "running"

    def _on_spawned(self, event: Event) -> None:
        """Handle also a scheduler, for which no node has ranks, and a process that had ended."""
        key = (str(event["role"]), int(event["rank"]))
        process = self.processes.setdefault(key, ProcessView(self._nodes[event["node"]], *key))
        process.state, process.exit_code = "starting", None

    def _on_ready(self, event: Event) -> None:
        self._set_state(event, "ready")

    def _on_stalled(self, event: Event) -> None:
        self._set_state(event, event.get("state", "stalled"))

    def _set_state(self, event: Event, state: str) -> None:
        process = self._process(event)
        if process is not None and process.exit_code is None:
            process.state = state

    def _on_step(self, event: Event) -> None:
        process = self._process(event)
        if process is None:
            return
        if process.exit_code is None:
            process.state = "running"
        numbers = {name: own_word(name, event.get(name)) for name in PROGRESS}
        process.numbers.update({name: number for name, number in numbers.items() if number is not None})
        if process.role == "trainer" and numbers["loss"] is not None:
            self.curve.append((int(event["step"]), float(numbers["loss"])))
            if len(self.curve) > CURVE_POINTS:
                del self.curve[::2]

    def _on_exited(self, event: Event) -> None:
        process = self._process(event)
        if process is None:
            return
        process.exit_code = event["exit_code"]
        failed = event["exit_code"] or event.get("unfinished")
        process.state = "stopped" if event["stopping"] else ("failed" if failed else "succeeded")
        if process.state == "failed" and not event.get("port_taken"):
            self.failures.append(event)

    def _on_nan(self, event: Event) -> None:
        """Record the first one only."""
        if self._finite:
            self.doubts.append(f"{event['message']} (first occurrence)")
            self._finite = False

    def _on_lost(self, event: Event) -> None:
        if "role" in event:
            self.doubts.append(f"{event['role']}{int(event['rank'])} was left out: {event['message']}")

    def _on_restarting(self, event: Event) -> None:
        process = self._process(event)
        if process is not None:
            process.state, process.exit_code = "restarting", None
        key = (event["role"], event["rank"])
        self.failures = [failure for failure in self.failures if (failure["role"], failure["rank"]) != key]

    def _on_rolled_back(self, event: Event) -> None:
        if event["whole"]:
            self.curve = [(step, loss) for step, loss in self.curve if step <= event["step"]]
            self._logged.clear()

    def _on_saved(self, event: Event) -> None:
        if event.get("complete"):
            (self.checkpoints if event.get("checkpoint") else self.saved).append(str(event["tag"]))

    def _on_log(self, event: Event) -> None:
        values, pass_ = own_word("values", event.get("values")), own_word("pass", event.get("pass"))
        if values is not None and pass_ is not None:
            logged = LoggedPass(values=values, weight=float(event.get("weight") or 1))
            if not logged["weight"] > 0:
                raise ValueError("a weight must be positive")
            self._logged.setdefault(pass_, {})[int(event["rank"])] = logged
            if len(self._logged) > MOST_PASSES:
                del self._logged[min(self._logged)]

    def _on_ended(self, event: Event) -> None:
        if ENDED(event) and ("not_heard_of" in event or event.get("node") == self._lead):
            self.ended = event
            self.doubts += [warning["message"] for warning in event.get("warnings") or ()]

    def new_passes(self) -> list[PassNumbers]:
        """Return the passes for which every trainer has logged its numbers, each pass once."""
        complete = [
            number
            for number, by_rank in self._logged.items()
            if len(by_rank) == len(self.trainers) and number not in self._reported_passes
        ]
        self._reported_passes.update(complete)
        return [_average(number, list(self._logged[number].values())) for number in sorted(complete)]


def _average(number: int, events: list[LoggedPass]) -> PassNumbers:
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for event in events:
        weight = event["weight"]
        for name, value in event["values"].items():
            if isinstance(value, int | float):
                sums[name] = sums.get(name, 0.0) + weight * value
                weights[name] = weights.get(name, 0.0) + weight
    return PassNumbers(number, {name: sums[name] / weights[name] for name in sums}, len(events))
