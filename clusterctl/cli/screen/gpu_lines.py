"""The GPUs of a run in `status`: columns of the table, and lines about who else uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clusterctl.check.gpus import gpu_name, user_name
from clusterctl.cli.console import human_bytes
from clusterctl.observe.record.model import Figures, ProcessRecord

HEADINGS = ("gpus", "gpu mem")
UUID_CHARS = 12
MOST_SHOWN = 8


def headings(processes: Iterable[ProcessRecord]) -> tuple[str, ...]:
    """Return the headings of the columns; none if no process has GPUs."""
    return HEADINGS if any("gpus" in process.figures for process in processes) else ()


def cells(figures: Figures) -> dict[str, str]:
    """Return the devices of a process and its memory on them, by heading."""
    devices = [name if len(name) <= UUID_CHARS else f"{name[:UUID_CHARS]}..." for name in figures.get("gpus") or ()]
    used = figures.get("gpu_memory")
    return {"gpus": ",".join(devices), "gpu mem": "" if used is None else human_bytes(used)}


def user_lines(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each failure of nvidia-smi, and for each process outside the run on one of its nodes' GPUs."""
    for node in nodes:
        report = node.get("gpus")
        if not report:
            continue

        if report["problem"] is not None:
            yield f"node{node['node']}: {report['problem']}"
        users = report["users"]
        for user in users[:MOST_SHOWN]:
            yield f"node{node['node']}: {gpu_name(user)} is also in use by {user_name(user)}"
        if len(users) > MOST_SHOWN:
            yield f"node{node['node']}: more uses of its GPUs: {len(users) - MOST_SHOWN}"
