"""All points of a run's curves, from the events of its nodes.

A run of weeks has millions of points. They are kept in one file for each node, so memory does not grow with the run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.cluster import ANSWER_S, Cluster, NodeOutcome, answers
from clusterctl.common.requests import EventsRequest
from clusterctl.common.run_state import Key
from clusterctl.common.schema import Count, fits
from clusterctl.inventory import Node
from clusterctl.observe.record.model import RunRecord, figure
from clusterctl.observe.record.secrets import Redactor

#: The kinds of events that have points, each with its figures, except `log`, whose figures the program names.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "step": ("loss", "samples_per_s", "compute", "wait", "wire", "lost", "apply_s", "send_s"),
    "pass": ("seconds", "compute", "wait", "wire"),
    "usage": ("cpu", "memory"),
    "log": (),
}
ROLLED_BACK = "rolled_back"  # recorded by the lead
MOST_ROLLBACKS = 1000  # each point is compared with all of them
AT_ONCE = 16  # nodes that send points at the same time: each sends as fast as it can
NEVER = 1 << 63  # a step that no process reaches


class Point(NamedTuple):
    """One value of a figure of a process. `t` is by our clock; `step` and `pass_` are None if the event has none.

    `of` is as in `Curve`, or "pass" for figures of a whole pass. The counts of sparse table `t` are of "table" and
    named `t.rows` and so on. `weight` is the number of samples of a loss, what the program gave for its own metrics,
    and 1 for others. `undone` means that a roll back undid the step.
    """

    t: float
    node: int
    role: str
    rank: int
    attempt: int
    of: str
    name: str
    step: int | None
    pass_: int | None
    value: float
    weight: float = 1.0
    undone: bool = False

    @property
    def process(self) -> str:
        return f"{self.role}{self.rank}"


@dataclass
class NodePoints:
    """The points of a node's processes, in the order in which they were recorded. Can be iterated more than once.

    `path` has the events, one line each. `lowest` is the lowest step of each attempt of a process, by kind of event.
    `rollbacks` are the times and steps of those of the whole run, by our clock; `recorded` those that this node did, by
    its own.
    """

    node: Node
    offset_s: float
    path: Path
    processes: Collection[Key]
    secrets: Redactor
    lowest: dict[tuple[Key, str], dict[int, int]] = field(default_factory=dict)
    recorded: list[tuple[float, int]] = field(default_factory=list)
    rollbacks: Sequence[tuple[float, int]] = ()

    def take(self, event: Mapping[str, Any]) -> bool:
        """Note the step of an event. Return False if it is not about a process of this node: a node may be hostile."""
        kind = str(event["event"])
        if kind == ROLLED_BACK:
            if event.get("whole") and fits(Count, event.get("step")) and len(self.recorded) < MOST_ROLLBACKS:
                self.recorded.append((event["t"], event["step"]))
            return False
        role, rank, attempt = (event.get(name) for name in ("role", "rank", "attempt"))
        if not (isinstance(role, str) and isinstance(rank, int) and isinstance(attempt, int) and fits(Count, attempt)):
            return False
        key = role, rank
        if kind not in FIGURES or key not in self.processes:
            return False
        step = figure("step", event.get("step"))
        if step is not None:
            by_attempt = self.lowest.setdefault((key, kind), {})
            by_attempt[attempt] = min(step, by_attempt.get(attempt, NEVER))
        return True

    def __iter__(self) -> Iterator[Point]:
        staleness = _Staleness()
        undone_from = {key: self._undone_from(key) for key in self.processes}
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                event = json.loads(line)
                key = event["role"], event["rank"]
                undone = undone_from[key][event["event"]].get(event["attempt"], NEVER)
                for point in _points(event, staleness):
                    t = point.t + self.offset_s
                    is_undone = point.step is not None and (
                        point.step >= undone or any(t <= then and point.step > step for then, step in self.rollbacks)
                    )
                    name = self.secrets.hide(point.name)
                    yield point._replace(t=t, node=self.node.id, name=name, undone=is_undone)

    def _undone_from(self, key: Key) -> dict[str, dict[int, int]]:
        """Return, by kind of event and attempt, the step from which on later attempts repeated the steps.

        A metric that a later attempt logged for the same step counts as repeated, too.
        """
        steps = self.lowest.get((key, "step"), {})
        return {kind: _lowest_later([steps, self.lowest.get((key, kind), {})]) for kind in FIGURES}


def read_points(cluster: Cluster, record: RunRecord, directory: Path) -> list[NodeOutcome[NodePoints]]:
    """Fetch all points of a run, from the nodes that gave their part of the record, into files in `directory`."""
    offsets = {known.node.id: known.offset_s or 0.0 for known in record.nodes if known.problem is None}
    nodes = [node for node in record.members.nodes if node.id in offsets]

    def one(node: Node) -> NodePoints:
        processes = {(one.role, one.rank) for one in record.processes if one.node.id == node.id}
        points = NodePoints(node, offsets[node.id], directory / f"{node.label}.jsonl", processes, Redactor(node.env))
        with points.path.open("w", encoding="utf-8") as file:
            for event in _events(cluster, node, record):
                if points.take(event):
                    file.write(json.dumps(event, separators=(",", ":")) + "\n")
        return points

    outcomes = cluster.map(one, nodes, at_once=AT_ONCE)
    found = [outcome.get() for outcome in outcomes if outcome.ok]
    rollbacks = [
        (t + one.offset_s, step) for one in found if one.node.id == record.members.lead for t, step in one.recorded
    ]
    for points in found:
        points.rollbacks = rollbacks
    return outcomes


def _events(cluster: Cluster, node: Node, record: RunRecord) -> Iterator[Mapping[str, Any]]:
    request: EventsRequest = {"op": "events", "ref": record.job, "run": record.run, "kinds": [*FIGURES, ROLLED_BACK]}
    with cluster.call(node, request, answer_s=ANSWER_S) as call:
        while "done" not in (message := call.receive(ANSWER_S)):
            yield from answers.news(message).get("events", ())


def _lowest_later(all_lowest: Collection[Mapping[int, int]]) -> dict[int, int]:
    """Return the lowest step of all later attempts, for each attempt."""
    later, least = {}, NEVER
    for attempt in sorted({attempt for lowest in all_lowest for attempt in lowest}, reverse=True):
        later[attempt] = least
        least = min(least, *(lowest.get(attempt, NEVER) for lowest in all_lowest))
    return later


class _Staleness:
    """The mean staleness of the pushes between two events of a pserver, which count all since it began."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int, int], tuple[int, int]] = {}

    def mean(self, process: tuple[str, int, int], counts: Sequence[tuple[int, int]]) -> tuple[float, int] | None:
        """Return the mean and the number of new pushes; None if there are none."""
        total, pushes = sum(age * of_age for age, of_age in counts), sum(of_age for _, of_age in counts)
        before = self._before.get(process, (0, 0))
        self._before[process] = total, pushes
        new = pushes - before[1]
        return ((total - before[0]) / new, new) if new > 0 else None


def _points(event: Mapping[str, Any], staleness: _Staleness) -> Iterator[Point]:
    """Yield the points of an event, by the node's clock. Programs write events: malformed fields are skipped."""
    kind = event["event"]
    process = event["role"], event["rank"], event["attempt"]

    def point(of: str, name: str, value: float, weight: object = 1.0) -> Point:
        step, pass_ = figure("step", event.get("step")), figure("pass", event.get("pass"))
        return Point(event["t"], -1, *process, of, name, step, pass_, value, _weight(weight))

    for name in FIGURES[kind]:
        if fits(float, event.get(name)):
            yield point(kind, name, event[name], event.get("samples", 1.0) if name == "loss" else 1.0)
    if kind == "log":
        for name, value in (figure("values", event.get("values")) or {}).items():
            yield point(kind, name, value, event.get("weight", 1.0))
    if kind == "step":
        new = staleness.mean(process, figure("staleness", event.get("staleness")) or [])
        if new is not None:
            yield point(kind, "staleness", *new)
        for table in figure("tables", event.get("tables")) or ():
            yield from (point("table", f"{table['name']}.{name}", table[name]) for name in table if name != "name")


def _weight(value: Any) -> float:
    return float(value) if fits(float, value) and 0 <= value < NEVER else 1.0
