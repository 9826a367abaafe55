"""The statistics of a soak: faults by kind, outcomes of runs, and how long detection and recovery took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from real.faults import storms
from real.faults.laboratory import Event
from real.faults.storms import Fault

Times = dict[str, list[float]]


@dataclass
class Figures:
    """Counts of injected faults, and seconds until each was noticed and until training continued or the run ended."""

    injected: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    noticed_s: Times = field(default_factory=dict)
    recovered_s: Times = field(default_factory=dict)

    def count(self, fault: Fault) -> None:
        self.injected[_kind(fault)] += 1

    def measure(self, fault: Fault, at: float, events: Sequence[Event], over: float, *, ends: bool) -> None:
        """Add the times of one fault, which `ends` the run or not.

        `events` are sorted by time, and the last process ended at `over`.
        """
        later = [event for event in events if event["at"] > at]
        if fault.name == "kill":
            self._add(fault, *_restart_times(fault, at, later))
        elif fault.name in storms.WAITED:
            lost, back = _at(later, _about("lost", fault)), _at(later, _about("rejoined", fault))
            step = back and _at(later, lambda event: event["event"] == "step" and event["at"] > back)
            self._add(fault, lost and lost - at, step and step - at)
        elif fault.name in (*storms.ENDING, *storms.LOSING):
            noticed = _at(later, lambda event: event["event"] in ("lost", "ended") or event.get("level") == "error")
            self._add(fault, noticed and noticed - at, over - at if ends else None)

    def _add(self, fault: Fault, noticed_s: float | None, recovered_s: float | None) -> None:
        for table, value in ((self.noticed_s, noticed_s), (self.recovered_s, recovered_s)):
            if value is not None:
                table.setdefault(_kind(fault), []).append(value)

    def lines(self) -> list[str]:
        lines = [f"{sum(self.injected.values())} faults in {sum(self.runs.values())} runs: {dict(self.runs)}"]
        for kind, count in sorted(self.injected.items()):
            tables = (("noticed", self.noticed_s), ("recovered", self.recovered_s))
            words = [_spread(name, table.get(kind, [])) for name, table in tables]
            lines.append(f"  {kind:<24} {count:>4}  {'  '.join(words)}".rstrip())
        return lines


def _kind(fault: Fault) -> str:
    return f"{fault.name} {fault.target.rstrip('0123456789')}"


def _spread(name: str, values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{name} after {statistics.median(values):.2f} s (at most {max(values):.2f})"


def _restart_times(fault: Fault, at: float, later: Sequence[Event]) -> tuple[float | None, float | None]:
    """Return the seconds until the lead decided, and until the first step of the new process or its trainers."""
    process = {"role": fault.target.rstrip("0123456789"), "rank": fault.number}
    decided = _at(later, lambda event: event["event"] == "restarting" and process.items() <= event.items())
    spawned = _at(later, lambda event: event["event"] == "spawned" and process.items() <= event.items())
    if decided is None or spawned is None:
        return None, None

    def continues(event: Event) -> bool:
        ours = process["role"] == "pserver" or process.items() <= event.items()
        return bool(event["event"] == "step" and event["at"] > spawned and ours)

    step = _at(later, continues)
    return decided - at, step and step - at


def _about(name: str, fault: Fault) -> Callable[[Event], bool]:
    """Return a predicate for an event of this name that the lead recorded about a node."""
    return lambda event: event["event"] == name and "role" not in event and event["node"] == fault.number


def _at(events: Sequence[Event], wanted: Callable[[Event], object]) -> float | None:
    return next((float(event["at"]) for event in events if wanted(event)), None)
