"""The timeline of a run: the states of each process over time, and the moments worth a mark. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.cluster import NONSENSE
from clusterctl.observe.record.marks import mark_of
from clusterctl.observe.record.model import Mark, Span
from clusterctl.observe.why.node_report import NodeReport

Key = tuple[str, int]
STARTING, RUNNING, STALLED, RESTARTING, LOST = "starting", "running", "stalled", "restarting", "lost"
MOST_MARKS = 2000  # the first and the last half of more
ONCE_PER_PROCESS = ("nan",)


@dataclass
class _Track:
    """The spans of one process so far; the last one is open if `state` is not None."""

    spans: list[Span] = field(default_factory=list)
    state: str | None = None
    since: float = 0.0
    attempt: int = 1

    def enter(self, state: str | None, t: float) -> None:
        """End the present state; begin `state`, None for none."""
        if self.state is not None and (t > self.since or state is None):
            self.spans.append(Span(self.state, self.since, max(t, self.since), self.attempt))
        self.state, self.since = state, t

    def finished(self) -> tuple[Span, ...]:
        """The spans, with the open one if the process is still in a state."""
        rest = [Span(self.state, self.since, None, self.attempt)] if self.state is not None else []
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
    tracks: dict[Key, _Track] = {}
    node_of: dict[Key, int] = {}
    for t, event in timed_events(reports):
        with contextlib.suppress(*NONSENSE):  # a process or a node may send malformed events
            _take(tracks, node_of, t, event)
    last_seen = {report.node: _last_seen(report) for report in reports}
    for key, track in tracks.items():
        seen = last_seen.get(node_of[key])
        end = ended_t if seen is None else seen
        if track.state is not None and end is not None:
            track.enter(LOST if seen is not None and ended_t is not None and seen < ended_t else None, end)
            if ended_t is not None:
                track.enter(None, ended_t)
    return {key: track.finished() for key, track in tracks.items()}


def _take(tracks: dict[Key, _Track], node_of: dict[Key, int], t: float, event: dict[str, Any]) -> None:
    name = event["event"]
    if name == "phase" and event["phase"] == "running":
        for track in tracks.values():
            if track.state == STARTING:
                track.enter(RUNNING, t)
    if event.get("role") is None:
        return
    key = (str(event["role"]), int(event["rank"]))
    if name == "spawned":
        track = tracks.setdefault(key, _Track())
        node_of[key] = int(event["node"])
        track.enter(STARTING, t)
        track.attempt = int(event.get("attempt") or 1)
    elif key in tracks:
        _change(tracks[key], t, event)


def _change(track: _Track, t: float, event: dict[str, Any]) -> None:
    name = event["event"]
    if name in ("ready", "step") and track.state == STARTING:
        track.enter(RUNNING, t)
    elif name == "stalled" and track.state is not None:
        track.enter(event.get("state") or RUNNING if event.get("over") else STALLED, t)
    elif name == "exited":
        track.enter(None, t)
    elif name == "restarting":
        track.enter(RESTARTING, t)


def _last_seen(report: NodeReport) -> float | None:
    """Return when the supervisor was last alive if it left without a word; None otherwise."""
    departure = report.departure(float("-inf")) if report.state == "lost" or report.is_closed else None
    return report.at(departure.seen) if departure is not None and departure.seen is not None else None


def rollbacks(reports: Sequence[NodeReport]) -> list[tuple[float, int]]:
    """Return the time of each roll back of all processes, and the step to which it went."""
    found = [(report.at(event["t"]), event) for report in reports for event in report.find("rolled_back", whole=True)]
    return [(t, event["step"]) for t, event in found if isinstance(event.get("step"), int)]


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
