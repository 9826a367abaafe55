"""The figures of a run as columns of numpy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterctl.cluster import Cluster, combined
from clusterctl.errors import NodeError, UsageError
from clusterctl.observe.record.history import read_history
from clusterctl.observe.record.points import Point, read_points

COLUMNS = ("t", "node", "role", "rank", "attempt", "of", "name", "step", "pass", "value", "weight", "undone")
UNKNOWN_STEP = -1
LARGEST = (1 << 63) - 1
_DTYPES = {"t": "f8", "node": "i8", "rank": "i8", "attempt": "i8", "step": "i8", "pass": "i8", "value": "f8"}
_MORE_DTYPES = {"weight": "f8", "undone": "?"}


class Metrics:
    """The points of all curves of a run, one row each; `metrics["value"]` is a column, all of the same length.

    The columns are `t` (seconds since the epoch, by the clock of this machine), `node`, `role`, `rank`, `attempt`,
    `of` ("step", "pass", "log", "usage" or "table"), `name` (such as "loss"), `step` and `pass` (-1 if unknown),
    `value`, `weight` and `undone` (True for points that a roll back undid). The arrays are those of this object.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = {name: columns[name] for name in COLUMNS}

    @classmethod
    def of(cls, points: Sequence[Point]) -> Metrics:
        """Return the points as columns, ordered by time."""
        rows = sorted(points, key=lambda point: point.t)
        columns = ([_cell(point[number]) for point in rows] for number in range(len(COLUMNS)))
        dtypes = {**_DTYPES, **_MORE_DTYPES}
        arrays = (np.array(column, dtype=dtypes.get(name, "U")) for name, column in zip(COLUMNS, columns, strict=True))
        return cls(dict(zip(COLUMNS, arrays, strict=True)))

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self._columns[column]

    def __len__(self) -> int:
        """The number of points."""
        return len(self._columns["t"])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the columns."""
        return iter(self._columns)

    def __repr__(self) -> str:
        return f"<Metrics: {len(self)} points of {', '.join(self.names) or 'nothing'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all figures, in alphabetical order."""
        return tuple(str(name) for name in np.unique(self["name"]))

    def select(
        self,
        name: str | None = None,
        *,
        of: str | None = None,
        role: str | None = None,
        rank: int | None = None,
        undone: bool | None = False,
    ) -> Metrics:
        """Return the points of one figure, of one kind, of one role or rank; by default without those undone."""
        keep = np.ones(len(self), dtype=bool)
        for column, value in (("name", name), ("of", of), ("role", role), ("rank", rank), ("undone", undone)):
            if value is not None:
                keep &= self[column] == value
        return Metrics({column: values[keep] for column, values in self._columns.items()})

    def curve(self, name: str, *, of: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps, ascending, and the mean over the trainers at each step, by weight.

        Points without a step and points that were undone do not count. Both arrays are empty if there are none.
        """
        some = self.select(name, of=of, role="trainer")
        known = some["step"] != UNKNOWN_STEP
        steps, where = np.unique(some["step"][known], return_inverse=True)
        weights, values = some["weight"][known], some["value"][known]
        whole = np.bincount(where, weights, len(steps))
        with np.errstate(divide="ignore", invalid="ignore"):
            return steps, np.bincount(where, weights * values, len(steps)) / whole

    def last(self, name: str) -> float:
        """Return the mean over the trainers of the last value of a figure, by weight; NaN if there is none."""
        some = self.select(name, role="trainer")
        newest = [np.flatnonzero(some["rank"] == rank)[-1] for rank in np.unique(some["rank"])]
        weights = some["weight"][newest]
        return float(np.average(some["value"][newest], weights=weights)) if weights.sum() else float("nan")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`, in which an unknown step or pass is missing. Without pandas raise UsageError."""
        try:
            import pandas  # noqa: PLC0415 - optional
        except ImportError as exc:
            raise UsageError("to_pandas needs pandas, which is not installed", hint="pip install pandas") from exc
        frame = pandas.DataFrame(self._columns)
        for name in ("step", "pass"):
            frame[name] = frame[name].astype("Int64").mask(frame[name] == UNKNOWN_STEP)
        return frame


def _cell(value: object) -> object:
    """Return what a column can hold: nodes may report numbers that no integer of numpy reaches."""
    if value is None:
        return UNKNOWN_STEP
    return min(value, LARGEST) if isinstance(value, int) else value


def read_metrics(cluster: Cluster, job: str, run: str, cache: Path) -> Metrics:
    """Read all points of a run, through files below `cache`. Raises NodeError if the part of a node is missing."""
    record = read_history(cluster, job, run=run, buckets=1, tail=0)
    errors = [NodeError(known.problem or "", node=known.node.label) for known in record.silent]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".points-", dir=cache) as scratch:
        outcomes = read_points(cluster, record, Path(scratch))
        points = [point for outcome in outcomes if outcome.ok for point in outcome.get()]
    missing = [*errors, *(outcome.error for outcome in outcomes if outcome.error)]
    if missing:
        raise combined(missing, len(record.nodes), "metrics")
    return Metrics.of(points)
