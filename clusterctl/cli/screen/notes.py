"""Lines below the table of a live run: which trainers the others wait for, and what was not saved at its time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.cli.console import human_duration, plural
from clusterctl.observe.record.model import Figures, ProcessRecord

SERVING = ("ready", "running")


def note_lines(processes: Iterable[ProcessRecord], cut_dropped: Mapping[str, Any] | None) -> list[str]:
    first = [one for one in processes if (one.role, one.rank) == ("pserver", 0) and one.state in SERVING]
    waits = filter(None, (_wait(process.figures) for process in first))
    return [*waits, *([] if cut_dropped is None else [_dropped(cut_dropped)])]


def _dropped(cut: Mapping[str, Any]) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(cut['t']))}  {cut['message']}"


def _wait(figures: Figures) -> str | None:
    """Describe what a pserver reports of trainers that wait for others; None if it reports no such thing."""
    ranks, waiting, for_s = figures.get("awaits"), figures.get("waiting"), figures.get("awaits_s")
    if not ranks or not waiting or for_s is None:
        return None
    names, more = [f"trainer{rank}" for rank in ranks], figures.get("awaited", 0) - len(ranks)
    last = f"{more:,} more" if more > 0 else names.pop()
    whom = f"{', '.join(names)} and {last}" if names else last
    have = "has" if waiting == 1 else "have"
    return f"{plural(waiting, 'trainer')} {have} been waiting for {whom} for {human_duration(for_s)}"
