"""The timeline of a run: the states of each process over time, and the moments worth a mark. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.cluster import NONSENSE
from clusterctl.common.points import Rollback
from clusterctl.common.run_state import ENDED, Key, ProcessState, RunState
from clusterctl.observe.record.marks import mark_of
from clusterctl.observe.record.model import Mark, Span
from clusterctl.observe.why.node_report import NodeReport

LOST = "lost"
MOST_MARKS = 2000  # the first and the last half of more
MOST_ROLLBACKS = 1000  # each point is compared with all of them
ONCE_PER_PROCESS = ("nan",)


@dataclass
class _Track(ProcessState):
    """A process of `node` and its spans so far; a last one is open if `shown` is not None."""

    node: int = -1
    spans: list[Span] = field(default_factory=list)
    shown: str | None = None
    since: float = 0.0
    attempt: int = 1

    def enter(self, state: str, t: float) -> None:
        self.state = state
        shown = None if state in ENDED else "running" if state == "ready" else state
        if shown != self.shown or self.attempt != self.restarts + 1:
            self.show(shown, t)

    def show(self, shown: str | None, t: float) -> None:
        """End the open span; begin one of this state, None for none."""
        if self.shown is not None and (t > self.since or shown is None):
            self.spans.append(Span(self.shown, self.since, max(t, self.since), self.attempt))
        self.shown, self.since, self.attempt = shown, t, self.restarts + 1

    def finished(self) -> tuple[Span, ...]:
        """The spans, with the open one if the process is still in a state."""
        rest = [Span(self.shown, self.since, None, self.attempt)] if self.shown is not None else []
        return (*self.spans, *rest)


def timed_events(reports: Sequence[NodeReport]) -> list[tuple[float, dict[str, Any]]]:
    """Return the events of all nodes with their times by our clock, oldest first."""
    events = [(report.at(event["t"]), event) for report in reports for event in report.events]
    return sorted(events, key=lambda timed: timed[0])


def spans(reports: Sequence[NodeReport], ended_t: float | None) -> dict[Key, tuple[Span, ...]]:
    """Return the spans of each process that was ever started.

    A process is starting until its pserver is ready, or until all processes of the run are running. The span of a
    process whose node fell silent ends when its supervisor was last seen, or else with the run.
    """
    run = RunState(lambda event: _Track(str(event["role"]), int(event["rank"]), node=int(event["node"])))
    for t, event in timed_events(reports):
        with contextlib.suppress(*NONSENSE):  # a process or a node may send malformed events
            run.take({**event, "t": t})
    last_seen = {report.node: _last_seen(report) for report in reports}
    for track in run.processes.values():
        seen = last_seen.get(track.node)
        end = ended_t if seen is None else seen
        if track.shown is not None and end is not None:
            track.show(LOST if seen is not None and ended_t is not None and seen < ended_t else None, end)
            if ended_t is not None:
                track.show(None, ended_t)
    return {key: track.finished() for key, track in run.processes.items()}


def _last_seen(report: NodeReport) -> float | None:
    """Return when the supervisor was last alive if it ended without recording that; None otherwise."""
    departure = report.departure(float("-inf")) if report.state == "lost" or report.is_closed else None
    return report.at(departure.seen) if departure is not None and departure.seen is not None else None


def rollbacks(reports: Sequence[NodeReport], lead: int) -> tuple[Rollback, ...]:
    """Return the roll backs of all processes, which the lead records; of too many, the first."""
    events = [(one, event) for one in reports if one.node == lead for event in one.find("rolled_back", whole=True)]
    found = [(one.at(event["t"]), step) for one, event in events if (step := event.get("step")) is not None]
    return tuple(found[:MOST_ROLLBACKS])


def marks(reports: Sequence[NodeReport], *, has_pservers: bool) -> tuple[Mark, ...]:
    """Return the marks of all events, oldest first; of too many, those in the middle are left out."""
    found = list(_marks(reports, has_pservers))
    if len(found) > MOST_MARKS:
        found = [*found[: MOST_MARKS // 2], *found[-MOST_MARKS // 2 :]]
    return tuple(found)


def _marks(reports: Sequence[NodeReport], has_pservers: bool) -> Iterator[Mark]:
    seen: set[tuple[str, str]] = set()
    for t, event in timed_events(reports):
        try:
            mark = mark_of(event, t, has_pservers=has_pservers)
        except NONSENSE:
            continue
        if mark is None or (mark.kind, mark.subject) in seen:
            continue
        if mark.kind in ONCE_PER_PROCESS:
            seen.add((mark.kind, mark.subject))
        yield mark
