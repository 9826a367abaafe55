"""Numbers and times as people read them."""

from __future__ import annotations

import datetime
import math

SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None) -> str:
    """Format a figure with four significant digits, such as `2.308`, `41.2k` or `1.5e-05`."""
    if value is None or not math.isfinite(value):
        return "\u2013" if value is None else str(value)
    size = abs(value)
    if size and (size < 1e-4 or size >= 1e15):
        return f"{value:.3g}"
    for unit, suffix in SUFFIXES:
        if size >= unit * 9.9995 or (unit > 1e3 and size >= unit * 0.99995):
            return f"{_trimmed(value / unit, 3)}{suffix}"
    return f"{value:,.0f}" if size >= 999.95 else _trimmed(value, 4)


def whole(value: float | None) -> str:
    """Format a count such as `1,204`."""
    return "\u2013" if value is None else f"{value:,}" if abs(value) < 1e15 else number(float(f"{value:.3e}"))


def amount(value: float | None) -> str:
    """Format bytes as `210 MB`."""
    if value is None:
        return "\u2013"
    for unit, suffix in SUFFIXES:
        if value >= unit * 0.9995:
            return f"{_trimmed(value / unit, 3)} {suffix}B"
    return f"{value:.0f} B"


def share(value: float | None) -> str:
    return "\u2013" if value is None else f"{100 * value:.0f}%"


def duration(seconds: float | None) -> str:
    """Format a duration as `4.2 s`, `30 s`, `2 min 5 s`, `1 h 3 min` or `2 d 4 h`."""
    if seconds is None:
        return "\u2013"
    if seconds < 9.95:
        return f"{_trimmed(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return (f"{minutes} min {rest} s" if rest else f"{minutes} min") if minutes else f"{rest} s"


def moment(t: float | None) -> str:
    """Format a time as `2026-11-21 08:15:30 +0100`, in the time zone of this machine."""
    known = _local(t)
    return "unknown" if known is None else known.strftime("%Y-%m-%d %H:%M:%S %z")


def clock(t: float, *, dated: bool = False) -> str:
    """Format a time of day as `08:15:30.250`, or with its date as `11-21 08:15:30`."""
    known = _local(t)
    if known is None:
        return "unknown"
    return known.strftime("%m-%d %H:%M:%S") if dated else known.strftime("%H:%M:%S.%f")[:-3]


def _local(t: float | None) -> datetime.datetime | None:
    try:
        return None if t is None else datetime.datetime.fromtimestamp(t).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _trimmed(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    if "e" in text:
        return f"{value:.0f}"
    return text
