"""Memory and disk of a running job over time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.processes import wait_until
from support.site import Site

EVERY_S = 1.0
MB = 1e6
#: What may be added from one quarter to the next, as a share and in MB.
SLACK, SLACK_MB = 0.05, 2.0
HISTORY = ("log", "events.jsonl")


class Watch:
    """Samples the resident memory of each process of a job, and the size of its directories.

    The event log and the logs of programs are a record of the run: they grow with its length, and are counted alone.
    """

    def __init__(self, site: Site, job: str) -> None:
        self._directories = [site.job_dir(job, node) for node in range(len(site.hosts))]
        self._pids = {f"{p['role']}{p['rank']}": p["pid"] for p in site.status(job)["processes"]}
        self._pids |= {f"supervisor{node}": site.supervisor(job, node) for node in range(len(site.hosts))}
        self._samples: list[tuple[float, dict[str, float]]] = []

    def until(self, end: float) -> None:
        """Sample until the time `end` of the monotonic clock."""
        while (now := time.monotonic()) < end:
            self._samples.append((now, self._sample()))
            wait_until(lambda now=now: time.monotonic() >= now + EVERY_S, EVERY_S)  # type: ignore[misc]

    def growth(self) -> dict[str, Any]:
        """Return the means of the third and of the last quarter in MB, and under `grown` what has grown."""
        first, last = self._samples[0][0], self._samples[-1][0]
        middle, late = first + (last - first) / 2, first + (last - first) * 3 / 4
        third = [sample for at, sample in self._samples if middle <= at < late]
        fourth = [sample for at, sample in self._samples if at >= late]
        names = sorted(self._samples[0][1])
        means = {name: [round(float(np.mean([s[name] for s in of])), 3) for of in (third, fourth)] for name in names}
        history = means.pop("history")
        per_hour = (history[1] - history[0]) / (last - first) * 4 * 3600
        grown = [name for name, (before, after) in means.items() if after > before * (1 + SLACK) + SLACK_MB]
        return {"mb": means, "history_mb": history[1], "history_mb_per_hour": round(per_hour, 1), "grown": grown}

    def _sample(self) -> dict[str, float]:
        memory = {name: _resident(pid) for name, pid in self._pids.items()}
        sizes = [_size(directory) for directory in self._directories]
        return {**memory, "disk": sum(disk for disk, _ in sizes), "history": sum(history for _, history in sizes)}


def _resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def _size(directory: Path) -> tuple[float, float]:
    """Return the size of a job directory in MB without its history, and that of its history."""
    disk = history = 0
    for top, _, names in os.walk(directory):
        for name in names:
            path = Path(top, name)
            try:
                size = path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
            if any(part in HISTORY for part in path.relative_to(directory).parts):
                history += size
            else:
                disk += size
    return disk / MB, history / MB
