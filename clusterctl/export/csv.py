"""A run as CSV files in long format: one row per point, and one per mark of the timeline.

Numbers are written so that reading them gives the same float; NaN and infinity are `nan`, `inf` and `-inf`. Times are
seconds since the epoch, and the same in UTC.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.escape import for_csv
from clusterctl.observe.record.model import Mark
from clusterctl.observe.record.points import Point

POINTS, TIMELINE = "points.csv", "timeline.csv"
POINT_COLUMNS = (
    *("t", "time", "node", "role", "rank", "attempt", "of", "name", "step", "pass", "value", "weight", "undone"),
)
MARK_COLUMNS = ("t", "time", "node", "role", "rank", "kind", "text")


def write_csv(directory: Path, marks: Iterable[Mark], points: Iterable[Point]) -> int:
    """Write both files. Return the number of points."""
    _write(directory / TIMELINE, MARK_COLUMNS, map(_mark_row, marks))
    return _write(directory / POINTS, POINT_COLUMNS, map(_point_row, points))


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(value) for value in row])
            count += 1
    return count


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if value is None:
        return ""
    return for_csv(value) if isinstance(value, str) else repr(value)


def _point_row(point: Point) -> Sequence[Any]:
    t, node, role, rank, attempt, *rest = point
    return (t, _utc(t), node, role, rank, attempt, *rest)


def _mark_row(mark: Mark) -> Sequence[Any]:
    return (mark.t, _utc(mark.t), mark.node, mark.role, mark.rank, mark.kind, mark.text)


def _utc(t: float) -> str:
    moment = datetime.datetime.fromtimestamp(t, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
