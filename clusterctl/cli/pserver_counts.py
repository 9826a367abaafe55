"""The counters of a run's pservers, as lines below the status table: staleness of pushes, size of sparse tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterctl.cli.console import human_bytes, human_count, percent
from clusterctl.observe.record.model import ProcessRecord


def count_lines(processes: Iterable[ProcessRecord]) -> list[str]:
    pservers = [process for process in processes if process.role == "pserver"]
    return [*_staleness_lines(pservers), *_lost_lines(pservers), *_table_lines(pservers)]


def staleness(processes: Iterable[ProcessRecord]) -> Counter[int]:
    """Count pushes by staleness, over all pservers: {pushes applied in between: number of pushes}."""
    counts: Counter[int] = Counter()
    for process in processes:
        counts.update({int(age): int(count) for age, count in process.figures.get("staleness") or ()})
    return counts


def _staleness_lines(pservers: Iterable[ProcessRecord]) -> list[str]:
    counts = staleness(pservers)
    if not counts:
        return []
    bins: Counter[int] = Counter()
    for age, count in counts.items():
        bins[age.bit_length()] += count
    shares = (f"{_range(bits)}: {percent(count / counts.total())}" for bits, count in sorted(bins.items()))
    return [f"staleness of {human_count(counts.total())} pushes  {'  '.join(shares)}"]


def _lost_lines(pservers: Iterable[ProcessRecord]) -> list[str]:
    lost = [f"{count:,} on {process.name}" for process in pservers if (count := process.figures.get("lost"))]
    return [f"pushes lost when a pserver failed: {', '.join(lost)}"] if lost else []


def _range(bits: int) -> str:
    """Format a range of counts: 0, 1, 2-3, 4-7, 8-15, ..."""
    low, high = (1 << bits) >> 1, (1 << bits) - 1
    return str(high) if low >= high else f"{low}-{high}"


def _table_lines(pservers: Iterable[ProcessRecord]) -> list[str]:
    tables: dict[str, Counter[str]] = {}
    for process in pservers:
        for table in process.figures.get("tables") or ():
            counts = {key: int(value) for key, value in table.items() if key != "name"}
            tables.setdefault(table["name"], Counter()).update(counts)
    return [f"table {name}  {_table(counts)}" for name, counts in sorted(tables.items())]


def _table(counts: Counter[str]) -> str:
    parts = [f"{human_count(counts['rows'])} rows, {human_bytes(counts['bytes'])}"]
    if counts["looked_up"]:
        parts.append(
            f"{percent(counts['hits'] / counts['looked_up'])} of {human_count(counts['looked_up'])} lookups hit"
        )
    removed = [f"{human_count(counts[name])} {name}" for name in ("refused", "expired", "evicted") if counts[name]]
    return ", ".join([*parts, *removed])
