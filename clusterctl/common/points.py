"""The points in the events of a process: the values of its figures, and which of them were undone. Pure.

Programs write most of the events: anything in them may be malformed, and is skipped then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterctl.common.safe_json import MOST, is_number, is_whole

#: The kinds of events that have points, each with its figures, except `log`, whose figures the program names. Their
#: `attempt` is the one that the process is in.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "step": ("loss", "samples_per_s", "compute", "wait", "wire", "lost", "apply_s", "send_s"),
    "pass": ("seconds", "compute", "wait", "wire"),
    "usage": ("cpu", "memory"),
    "log": (),
}
Event = Mapping[str, Any]
#: The name of a figure, its value, and the weight: the number of samples of a loss, the number of pushes of their
#: staleness, what the program gave for its own metrics, and 1 for others.
Value = tuple[str, float, float]
#: The time of a roll back of all processes, and the step to which it went.
Rollback = tuple[float, int]


class ProcessEvents:
    """Reads the events of one process in the order in which they were recorded. `attempt` numbers its attempts."""

    def __init__(self) -> None:
        self.attempt = 0
        self._named: object = None  # how the events name this attempt
        self._lowest = {kind: [MOST] for kind in FIGURES}  # the lowest step of each attempt
        self._pushes = (0, 0)  # of this attempt: the sum of their staleness, and their number

    def add(self, event: Event) -> int | None:
        """Add the next event, of a kind that has points. Return its step."""
        if event.get("attempt") != self._named:
            self.attempt += 1
            self._named = event.get("attempt")
            self._pushes = (0, 0)
            for lowest in self._lowest.values():
                lowest.append(MOST)
        step = count_of(event.get("step"))
        if step is not None:
            lowest = self._lowest[event["event"]]
            lowest[-1] = min(step, lowest[-1])
        return step

    def values(self, event: Event) -> Iterator[Value]:
        """Yield the values in the event that was added last, without those of tables."""
        kind = event["event"]
        for name in FIGURES[kind]:
            if name in event and is_number(event[name]):
                yield name, event[name], _weight(event.get("samples")) if name == "loss" else 1.0
        if kind == "log" and isinstance(event.get("values"), dict):
            weight = _weight(event.get("weight"))
            for name, value in event["values"].items():
                if is_number(value):
                    yield name, value, weight
        if kind == "step" and event.get("staleness"):
            yield from self._staleness(event["staleness"])

    def _staleness(self, counts: object) -> Iterator[Value]:
        """Yield the mean of the pushes since the event before; `counts` are those since the process began."""
        if not (isinstance(counts, list) and all(map(_are_counts, counts))):
            return
        total, pushes = sum(age * of_age for age, of_age in counts), sum(of_age for _, of_age in counts)
        before, self._pushes = self._pushes, (total, pushes)
        new = pushes - before[1]
        if new > 0:
            yield "staleness", (total - before[0]) / new, float(new)

    def undone_from(self) -> Mapping[str, Sequence[int]]:
        """Return, by kind of event and by attempt, the step from which on later attempts repeated the steps.

        A metric that a later attempt logged for the same step counts as repeated, too.
        """
        steps = _lowest_later(self._lowest["step"])
        return {kind: list(map(min, steps, _lowest_later(lowest))) for kind, lowest in self._lowest.items()}


def tables_of(event: Event) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the name and the counts of each sparse table in an event."""
    tables = event.get("tables")
    for table in tables if isinstance(tables, list) else ():
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            yield table["name"], {name: value for name, value in table.items() if name != "name" and is_whole(value)}


def is_rolled_back(t: float, step: int | None, rollbacks: Sequence[Rollback]) -> bool:
    """Return True if a roll back undid a step that was made by time `t`.

    The events of a process show this only once it repeats the step.
    """
    return step is not None and any(t <= then and step > to for then, to in rollbacks)


def count_of(value: object) -> int | None:
    """Return a step or a pass; None if it is not a count."""
    return value if isinstance(value, int) and is_whole(value) and value >= 0 else None


def _lowest_later(lowest: Sequence[int]) -> list[int]:
    """Return, for each attempt, the lowest step of all later ones."""
    later = [MOST]
    for step in reversed(lowest[1:]):
        later.append(min(step, later[-1]))
    return later[::-1]


def _weight(value: object) -> float:
    """Return a weight that can be summed up; 1 if there is none."""
    return float(value) if isinstance(value, (int, float)) and is_number(value) and 0 <= value < MOST else 1.0


def _are_counts(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(count_of(item) is not None for item in pair)
