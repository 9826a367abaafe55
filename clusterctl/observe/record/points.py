"""All points of a run's curves, from the events of its nodes.

A run of weeks has millions of points. They are kept in one file for each node, so memory does not grow with the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.cluster import ANSWER_S, Cluster, NodeOutcome, answers
from clusterctl.common.points import FIGURES, ProcessEvents, Rollback, count_of, is_rolled_back, tables_of
from clusterctl.common.requests import EventsRequest
from clusterctl.common.run_state import Key
from clusterctl.common.schema import Count, fits
from clusterctl.inventory import Node
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.secrets import Redactor

AT_ONCE = 16  # nodes that send points at the same time: each sends as fast as it can


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


class NodePoints:
    """The points of a node's processes, in the order in which they were recorded. Can be iterated more than once.

    `path` is the file of their events, one line each. `rollbacks` are those of the whole run, by our clock.
    """

    def __init__(
        self,
        node: Node,
        offset_s: float,
        path: Path,
        processes: Iterable[Key],
        secrets: Redactor,
        rollbacks: Sequence[Rollback] = (),
    ) -> None:
        self.node = node
        self.path = path
        self._offset_s = offset_s
        self._secrets = secrets
        self._rollbacks = rollbacks
        self._written = {key: ProcessEvents() for key in processes}

    def add(self, event: Mapping[str, Any]) -> bool:
        """Add the next event for the file. Return False if it is not about a process of this node."""
        role, rank = event.get("role"), event.get("rank")
        if not (isinstance(role, str) and isinstance(rank, int) and fits(Count, event.get("attempt"))):
            return False
        written = self._written.get((role, rank))
        if written is None or event["event"] not in FIGURES:
            return False
        written.add(event)
        return True

    def __iter__(self) -> Iterator[Point]:
        undone_from = {key: written.undone_from() for key, written in self._written.items()}
        processes = {key: ProcessEvents() for key in self._written}
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                event = json.loads(line)
                key, kind = (event["role"], event["rank"]), event["event"]
                yield from self._points(event, processes[key], undone_from[key][kind])

    def _points(self, event: Mapping[str, Any], process: ProcessEvents, undone_from: Sequence[int]) -> Iterator[Point]:
        t, step, kind = event["t"] + self._offset_s, process.add(event), event["event"]
        undone = step is not None and (step >= undone_from[process.attempt] or is_rolled_back(t, step, self._rollbacks))
        about = (t, self.node.id, event["role"], event["rank"], event["attempt"])

        def point(of: str, name: str, value: float, weight: float = 1.0) -> Point:
            pass_ = count_of(event.get("pass"))
            return Point(*about, of, self._secrets.hide(name), step, pass_, value, weight, undone)

        for value in process.values(event):
            yield point(kind, *value)
        for table, counts in tables_of(event) if kind == "step" else ():
            yield from (point("table", f"{table}.{name}", count) for name, count in counts.items())


def read_points(cluster: Cluster, record: RunRecord, directory: Path) -> list[NodeOutcome[NodePoints]]:
    """Fetch all points of a run, from the nodes that gave their part of the record, into files in `directory`."""
    offsets = {known.node.id: known.offset_s or 0.0 for known in record.nodes if known.problem is None}
    nodes = [node for node in record.members.nodes if node.id in offsets]

    def one(node: Node) -> NodePoints:
        processes = [(one.role, one.rank) for one in record.processes if one.node.id == node.id]
        path, secrets = directory / f"{node.label}.jsonl", Redactor(node.env)
        points = NodePoints(node, offsets[node.id], path, processes, secrets, record.rollbacks)
        with path.open("w", encoding="utf-8") as file:
            for event in _events(cluster, node, record):
                if points.add(event):
                    file.write(json.dumps(event, separators=(",", ":")) + "\n")
        return points

    return cluster.map(one, nodes, at_once=AT_ONCE)


def _events(cluster: Cluster, node: Node, record: RunRecord) -> Iterator[Mapping[str, Any]]:
    request: EventsRequest = {"op": "events", "ref": record.job, "run": record.run, "kinds": [*FIGURES]}
    with cluster.call(node, request, answer_s=ANSWER_S) as call:
        while "done" not in (message := call.receive(ANSWER_S)):
            yield from answers.news(message).get("events", ())
