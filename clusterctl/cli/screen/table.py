"""The processes of a run as rows, the odd ones first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.cli import style
from clusterctl.cli.console import human_bytes, human_count, percent
from clusterctl.observe.record.model import Figures, ProcessRecord

#: States in which a process needs attention, the worst first.
TROUBLE = ("failed", "lost", "stalled", "restarting", "unknown", "stopped")
CLEARLY = 0.2  # the share of its time by which the slowest trainer waits less than the others
METRIC_CHARS = 17
MOST_METRICS = 4
HEADINGS = (
    *("process", "node", "state", "pass", "step", "loss", "samples/s", "compute", "wait", "wire", "stale"),
    *("cpu", "mem"),
)
NUMERIC = ("pass", "step", "loss", "samples/s", "compute", "wait", "wire", "stale", "cpu", "mem")
DROPPED_FIRST = ("node", "wire", "compute", "stale", "pass", "mem", "wait")  # where the terminal is narrow
#: The orders of the rows: the key `s` takes the next one.
ORDERS = ("odd first", "rank", "loss", "samples/s", "wait", "cpu", "mem")
FIGURE_OF = {"loss": "loss", "samples/s": "samples_per_s", "wait": "wait", "cpu": "cpu", "mem": "memory"}


def slowest(trainers: Sequence[ProcessRecord]) -> ProcessRecord | None:
    """Return the trainer that the others wait for, if there is a clear one."""
    running = [trainer for trainer in trainers if trainer.state == "running"]
    waits = [trainer.figures["wait"] for trainer in running if "wait" in trainer.figures]
    if len(waits) < 2 or len(waits) < len(running) or max(waits) - min(waits) < CLEARLY:
        return None
    return min(running, key=lambda trainer: trainer.figures["wait"])


def ordered(processes: Sequence[ProcessRecord], order: str) -> list[ProcessRecord]:
    """Return the processes in one of ORDERS; trainers before pservers where they are equal."""
    slow = slowest([process for process in processes if process.role == "trainer"])

    def rank(process: ProcessRecord) -> tuple[bool, int]:
        return process.role != "trainer", process.rank

    def oddness(process: ProcessRecord) -> int:
        if process.state in TROUBLE:
            return TROUBLE.index(process.state)
        if process is slow:
            return len(TROUBLE)
        return len(TROUBLE) + (1 if process.restarts else 2)

    def figure(process: ProcessRecord) -> float:
        value = process.figures.get(FIGURE_OF[order])
        return -float(value) if isinstance(value, int | float) else float("inf")

    keys: dict[str, Callable[[ProcessRecord], float]] = {"odd first": oddness, "rank": lambda process: 0}
    place = keys.get(order, figure)
    return sorted(processes, key=lambda process: (place(process), rank(process)))


def metric_names(processes: Sequence[ProcessRecord], most: int) -> list[str]:
    """Return the names of the first few of the program's own metrics."""
    names: dict[str, None] = {}
    for process in processes:
        names.update(dict.fromkeys(process.figures.get("values") or ()))
    return list(names)[:most]


def metric_headings(names: Sequence[str]) -> list[str]:
    """Return the names of metrics as headings. Long ones lose their middle: their ends tell them apart."""
    half = METRIC_CHARS // 2
    return [name if len(name) <= METRIC_CHARS else f"{name[:half]}\u2026{name[-half:]}" for name in names]


def cells(process: ProcessRecord, metrics: Sequence[str], *, is_slowest: bool) -> list[str]:
    """Return one row: the columns of HEADINGS, then the program's own `metrics`."""
    figures = process.figures
    notes = ["slowest"] if is_slowest else []
    notes += [f"restart {process.restarts}"] if process.restarts else []
    by_heading = figure_cells(figures)
    return [
        style.process(process.role, process.name),
        process.node.label,
        style.state(process.state) + (style.warning(f" {', '.join(notes)}") if notes else ""),
        *(by_heading[heading] for heading in NUMERIC),
        *metric_cells(figures, metrics),
    ]


def metric_cells(figures: Figures, names: Sequence[str]) -> list[str]:
    """Return the values of the program's own metrics as text; empty where they are unknown."""
    values = figures.get("values") or {}
    return [f"{values[name]:.4g}" if name in values else "" for name in names]


def figure_cells(figures: Figures) -> dict[str, str]:
    """Return the figures of a process as text, by their headings in NUMERIC; empty where they are unknown."""
    return {
        "pass": str(figures["pass"]) if "pass" in figures else "",
        "step": human_count(figures["step"]) if "step" in figures else "",
        "loss": f"{figures['loss']:.3f}" if "loss" in figures else "",
        "samples/s": human_count(figures["samples_per_s"]) if "samples_per_s" in figures else "",
        "compute": percent(figures["compute"]) if "compute" in figures else "",
        "wait": percent(figures["wait"]) if "wait" in figures else "",
        "wire": percent(figures["wire"]) if "wire" in figures else "",
        "stale": _staleness(figures.get("staleness")),
        "cpu": percent(figures["cpu"]) if "cpu" in figures else "",
        "mem": human_bytes(figures["memory"]) if "memory" in figures else "",
    }


def _staleness(counts: Sequence[Sequence[int]] | None) -> str:
    """Return the mean staleness of the pushes that a pserver applied; empty if all were fresh."""
    pushes = sum(count for _, count in counts or ())
    mean = sum(age * count for age, count in counts or ()) / pushes if pushes else 0.0
    return f"{mean:.1f}" if mean else ""
