"""The state of a run that is being followed: a pure fold of its events."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterctl.cluster import NONSENSE
from clusterctl.cluster.answers import ReportedEnd, ReportedPhase
from clusterctl.cluster.run_answers import DroppedCutAnswer
from clusterctl.common.curves import Curve, mean
from clusterctl.common.events import RunWarning
from clusterctl.common.run_state import Event, RunState
from clusterctl.common.schema import reader
from clusterctl.inventory import Node
from clusterctl.observe.record.curves import merged, summed
from clusterctl.observe.record.marks import mark_of, warning_text
from clusterctl.observe.record.model import Mark, ProcessRecord, figure

CURVE_POINTS = 4000
MOST_MARKS = 1000
RATE_EVERY_S = 1.0
#: The events whose values are shown as they are; the schema checks them.
CHECKED = {"ended": ReportedEnd, "phase": ReportedPhase, "cut_dropped": DroppedCutAnswer, "warned": RunWarning}
MOST_PASSES = 1000  # kept until every trainer has logged its numbers


class PassNumbers:
    """The numbers that trainers logged in a pass; `ranks` are those trainers."""

    def __init__(self, pass_: int) -> None:
        self.pass_ = pass_
        self.ranks: set[int] = set()
        self._sums: dict[str, tuple[float, float]] = {}  # by weight, and of the weights

    def add(self, rank: int, values: Mapping[str, float], weight: float) -> None:
        self.ranks.add(rank)
        for name, value in values.items():
            total, whole = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + weight * value, whole + weight

    @property
    def values(self) -> dict[str, float]:
        """The mean of each number over all trainers and the whole pass, by weight."""
        return {name: total / whole for name, (total, whole) in self._sums.items()}


class LiveRecord(RunState[ProcessRecord]):
    """The state of a run of `nodes`, of which the first leads, and what a screen shows of it: curves, marks, numbers.

    `doubts` are problems that a user should know of even if the run succeeds, beside its warnings.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._by_id = {node.id: node for node in nodes}
        super().__init__(
            lambda event: ProcessRecord(str(event["role"]), int(event["rank"]), node=self._by_id[event["node"]]),
            lead=nodes[0].id,
        )
        self.doubts: list[str] = []
        self._finite = True
        self.curve: list[tuple[float, float]] = []
        self.rates: list[tuple[float, float]] = []
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        for role in ("pserver", "trainer"):
            for node in nodes:
                for rank in node.pserver_ranks if role == "pserver" else node.trainer_ranks:
                    self.processes[role, rank] = ProcessRecord(role, rank, node=node)
        self._logged: dict[int, PassNumbers] = {}
        self._reported_passes: set[int] = set()
        self._pass_of: dict[int, int] = {}
        self._pass_began_t: float | None = None
        self._pass_s: float | None = None

    def begin_from(
        self,
        processes: Iterable[ProcessRecord],
        phase: str | None,
        curves: Sequence[Curve],
        cut_dropped: Mapping[str, Any] | None = None,
        warnings: Sequence[RunWarning] = (),
    ) -> None:
        """Take the present state of a run that is followed from now on: its processes and their curves until now.

        A node that has processes has no others, whatever the conf.py of now plans for it.
        """
        self.cut_dropped = cut_dropped
        self.warnings = warnings
        present = {(process.role, process.rank): process for process in processes}
        known = {process.node.id for process in present.values()}
        planned = {key: process for key, process in self.processes.items() if process.node.id not in known}
        self.processes = {**planned, **present}
        self.phase = phase or self.phase
        kept = [curve for curve in curves if not curve.undone and curve.role == "trainer"]
        losses = merged((curve for curve in kept if curve.name == "loss"), by="step")
        rates = summed(curve for curve in kept if curve.name == "samples_per_s")
        self.curve = [(one.step1, one.mean) for one in losses if one.step1 is not None and one.mean is not None]
        self.rates = [(one.t1, one.mean) for one in rates if one.mean is not None]

    @property
    def trainers(self) -> list[ProcessRecord]:
        return [process for process in self.processes.values() if process.role == "trainer"]

    @property
    def has_pservers(self) -> bool:
        return any(process.role == "pserver" for process in self.processes.values())

    @property
    def samples_per_s(self) -> float:
        """The samples per second of all trainers; at the end of the run, when it last trained."""
        return self._rate() or (self.rates[-1][1] if self.rates else 0.0)

    @property
    def loss(self) -> float | None:
        losses = [t.figures["loss"] for t in self.trainers if t.figures.get("loss") is not None]
        return mean(losses) if losses else None

    @property
    def step(self) -> int:
        return max((t.figures.get("step") or 0 for t in self.trainers), default=0)

    @property
    def pass_(self) -> int:
        return max((t.figures.get("pass") or 0 for t in self.trainers), default=0)

    @property
    def passes(self) -> int | None:
        """The number of passes that the trainers are to do; None if it is unknown, or if they differ."""
        wanted = {t.figures["passes"] for t in self.trainers if "passes" in t.figures}
        return wanted.pop() if len(wanted) == 1 else None

    def time_left_s(self, now: float) -> float | None:
        """Estimate the time until the last pass is over, from the duration of the newest whole pass; None if unknown.

        `now` is by the clock of the lead's node.
        """
        if self.passes is None or self._pass_s is None or self._pass_began_t is None:
            return None
        in_pass = min(max(now - self._pass_began_t, 0.0), self._pass_s)
        return max(0.0, (self.passes - self.pass_) * self._pass_s - in_pass)

    @property
    def warning_messages(self) -> list[str]:
        """The warnings of the run so far."""
        return list(dict.fromkeys(map(warning_text, self.warnings)))

    def take(self, event: Event) -> None:
        """Take an event. A process or a node may send malformed ones: they change nothing."""
        with contextlib.suppress(*NONSENSE):
            mark = mark_of(event, event["t"], has_pservers=self.has_pservers)
            self.marks.extend([mark] if mark is not None else [])
        with contextlib.suppress(*NONSENSE):
            kind = CHECKED.get(event["event"])
            super().take(event if kind is None else reader(kind)(event))
        show = getattr(self, f"_show_{event['event']}", None)
        if show is not None:
            with contextlib.suppress(*NONSENSE):
                show(event)

    def _show_spawned(self, event: Event) -> None:
        process = self.process(event)
        if process is not None:
            process.forget_passing()

    def _show_step(self, event: Event) -> None:
        process = self.process(event)
        if process is None:
            return
        process.forget_passing()
        process.take_figures(event)
        if process.role == "trainer":
            self._add_rate(event["t"])
            if "pass" in process.figures:
                self._pass_of[process.rank] = process.figures["pass"]
        loss = figure("loss", event.get("loss"))
        if process.role == "trainer" and loss is not None:
            _append(self.curve, (int(event["step"]), float(loss)))

    def _rate(self) -> float:
        return sum(one.figures.get("samples_per_s") or 0.0 for one in self.trainers if one.state == "running")

    def _add_rate(self, t: float) -> None:
        if self.rates and t - self.rates[-1][0] < RATE_EVERY_S:
            self.rates[-1] = (self.rates[-1][0], self._rate())
        else:
            _append(self.rates, (t, self._rate()))

    def _show_pass(self, event: Event) -> None:
        """A trainer has ended a pass."""
        process = self.process(event)
        seconds = figure("loss", event.get("seconds"))
        if process is not None and seconds is not None and math.isfinite(seconds):
            process.take_figures({"passes": event.get("passes")})
            self._pass_s, self._pass_began_t = float(seconds), event["t"]

    def _show_usage(self, event: Event) -> None:
        process = self.process(event)
        if process is not None:
            process.take_figures({"cpu": event.get("cpu"), "memory": event.get("memory")})

    def _show_nan(self, event: Event) -> None:
        """Record the first one only."""
        if self._finite:
            self.doubts.append(f"{event['message']} (first occurrence)")
            self._finite = False

    def _show_lost(self, event: Event) -> None:
        if "role" in event:
            self.doubts.append(f"{event['role']}{int(event['rank'])} was left out: {event['message']}")

    def _show_moved(self, event: Event) -> None:
        process = self.process(event)
        if process is not None:
            process.node = self._by_id[event["node"]]

    def _show_rolled_back(self, event: Event) -> None:
        if event["whole"]:
            self.curve = [(step, loss) for step, loss in self.curve if step <= event["step"]]
            self._logged.clear()
            self._pass_of.clear()

    def _show_log(self, event: Event) -> None:
        values, pass_ = figure("values", event.get("values")), figure("pass", event.get("pass"))
        process = self.process(event)
        if values is None or pass_ is None or process is None:
            return
        weight = float(event.get("weight") or 1)
        if not weight > 0:
            raise ValueError("a weight must be positive")
        process.figures["values"] = {**process.figures.get("values", {}), **values}
        self._pass_of[process.rank] = max(pass_, self._pass_of.get(process.rank, 0))
        self._logged.setdefault(pass_, PassNumbers(pass_)).add(process.rank, values, weight)
        if len(self._logged) > MOST_PASSES:
            del self._logged[min(self._logged)]

    def new_passes(self) -> list[PassNumbers]:
        """Return the passes that are over and in which every trainer logged numbers, each pass once."""
        alive = [self._pass_of.get(one.rank, -1) for one in self.trainers if one.exit_code is None]
        current = min(alive, default=None)
        over = [
            number
            for number, logged in self._logged.items()
            if len(logged.ranks) == len(self.trainers)
            and number not in self._reported_passes
            and (current is None or number < current)
        ]
        self._reported_passes.update(over)
        return [self._logged[number] for number in sorted(over)]


def _append(curve: list[tuple[float, float]], point: tuple[float, float]) -> None:
    """Append a point to a curve; if it becomes too long, drop every second point."""
    curve.append(point)
    if len(curve) > CURVE_POINTS:
        del curve[::2]
