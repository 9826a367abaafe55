"""The program's own metrics of one process: of each the last value, the lowest and the highest since its start."""

from __future__ import annotations

import math
from collections.abc import Mapping

MOST_METRICS = 200  # of a process; each is in every state that the supervisor writes
MOST_NAME = 200  # characters
Metrics = dict[str, "list[float | None]"]  # [last, lowest, highest]: the last may be NaN or infinite, the others not


def add_values(metrics: Metrics, values: Mapping[str, float]) -> None:
    """Add the numbers that a process logged. Integers beyond the range of floats are left out."""
    for name, value in values.items():
        if len(name) > MOST_NAME or (name not in metrics and len(metrics) >= MOST_METRICS):
            continue
        try:
            last = float(value)
        except OverflowError:
            continue
        _, low, high = metrics.get(name, (None, None, None))
        if math.isfinite(last):
            low, high = last if low is None else min(low, last), last if high is None else max(high, last)
        metrics[name] = [last, low, high]
