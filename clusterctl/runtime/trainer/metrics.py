"""Metrics that a training program logs, thinned to at most one event a second for each set of names."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable

EVERY_S = 1.0


@dataclass
class MetricSums:
    """Weighted sums of one set of names since their last event."""

    sent_s: float = float("-inf")
    weight: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0

    def add(self, values: Mapping[str, float], weight: float) -> None:
        self.count += 1
        self.weight += weight
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + weight * value

    def means(self) -> dict[str, float]:
        return {name: total / self.weight if self.weight else 0.0 for name, total in self.sums.items()}


class Logbook:
    """Calls `send(means, weight)` at once for names without an event for a second, otherwise with later values.

    Thread-safe.
    """

    def __init__(self, send: Callable[[dict[str, float], float], None]) -> None:
        self._send = send
        self._groups: dict[tuple[str, ...], MetricSums] = {}
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, float], weight: float, now_s: float) -> None:
        with self._lock:
            group = self._groups.setdefault(tuple(sorted(values)), MetricSums())
            group.add(values, weight)
            if now_s - group.sent_s >= EVERY_S:
                self._flush(group, now_s)

    def flush(self, now_s: float) -> None:
        """Send the values still held back; call it before the current pass changes."""
        with self._lock:
            for group in self._groups.values():
                if group.count:
                    self._flush(group, now_s)

    def _flush(self, group: MetricSums, now_s: float) -> None:
        self._send(group.means(), group.weight)
        group.sent_s, group.weight, group.count = now_s, 0.0, 0
        group.sums.clear()
