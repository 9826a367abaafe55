"""Axes: the range of values that a chart shows, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clusterctl.common.curves import clipped
from clusterctl.report import formats

LOG_FROM = 40.0  # the ratio of the largest to the smallest value from which an axis is logarithmic
TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True)
class Axis:
    """The range `low` to `high` on a chart."""

    low: float
    high: float
    ticks: tuple[float, ...]
    format: Callable[[float], str]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value, 0 at the low end and 1 at the high end; a bit beyond for values outside."""
        low, high, value = (math.log10(max(x, 1e-300)) if self.is_log else x for x in (self.low, self.high, value))
        return min(1.5, max(-0.5, (value - low) / (high - low)))


def value_axis(
    values: Iterable[float], format: Callable[[float], str], *, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """Return the axis for these values, with about four ticks."""
    known = [clipped(value) for value in values]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if may_be_log and low > 0 and high / low >= LOG_FROM:
        return _log_axis(low, high, format)
    low = min(low, 0.0) if from_zero else low
    if not high - low > abs(high) * 1e-9:
        room = abs(high) * 0.1 or 1.0
        low, high = low if from_zero and low >= 0 else low - room, high + room
    step = _nice((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return Axis(low, high, tuple(low + i * step for i in range(count + 1)), format)


def step_axis(low: float, high: float) -> Axis:
    """Return the axis for steps: it ends where the steps do."""
    high = max(high, low + max(1.0, low * 1e-9))
    step = max(1.0, _nice((high - low) / 5))
    first = math.ceil(low / step)
    ticks = tuple(i * step for i in range(first, math.floor(high / step + 1e-9) + 1))
    return Axis(low, high, ticks, formats.number)


def time_axis(seconds: float) -> Axis:
    """Return the axis for times since the start of a run."""
    seconds = max(seconds, 0.1)
    step = next((step for step in TIME_STEPS if seconds / step <= 5), None) or _nice(seconds / 4 / 86400) * 86400
    ticks = tuple(i * step for i in range(int(seconds / step + 1e-9) + 1))
    return Axis(0.0, seconds, ticks, lambda tick: "0" if tick == 0 else formats.duration(tick))


def _log_axis(low: float, high: float, format: Callable[[float], str]) -> Axis:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    many = len(decades) > 3
    every = math.ceil(len(decades) / 5)
    ticks = [m * 10.0**d for d in decades for m in ((1,) if many else (1, 2, 5)) if not many or d % every == 0]
    low, high = low * 0.95, high * 1.05
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), format, is_log=True)


def _nice(step: float) -> float:
    """Round a distance between ticks up to 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * 0.999), 10 * power)
