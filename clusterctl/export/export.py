"""Export one run: read its record and its points, and write them in one of three formats."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import ExportDocument
from clusterctl.errors import ClusterctlError, NodeError, UsageError
from clusterctl.export.csv import write_csv
from clusterctl.export.directory import replacing, usable
from clusterctl.export.tensorboard import need_tensorboardx, write_tensorboard
from clusterctl.export.trace import write_trace
from clusterctl.observe.record.history import BUCKETS, read_history
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.points import NodePoints, read_points
from clusterctl.observe.record.status import unheard

TENSORBOARD, TRACE, CSV = FORMATS = ("tensorboard", "trace", "csv")
TRACE_BUCKETS = 1000  # of a counter: a viewer shows more of it than a report does


@dataclass(frozen=True)
class Export:
    """An export in `directory`. `count` is the number of points, or of events of a trace.

    `errors` are those of nodes whose part is missing.
    """

    record: RunRecord
    to: str
    directory: Path
    files: tuple[str, ...]
    count: int
    errors: tuple[ClusterctlError, ...]

    @property
    def problem(self) -> ClusterctlError | None:
        """The error to report if parts are missing."""
        return unheard(self.errors, len(self.record.nodes))

    def to_json(self) -> ExportDocument:
        """The document of `export --json`."""
        return {
            "job": self.record.job,
            "run": self.record.run,
            "state": self.record.state,
            "to": self.to,
            "dir": str(self.directory),
            "files": list(self.files),
            "count": self.count,
        }


def check_format(to: str, *others: str) -> None:
    """Raise UsageError if a run is not exported in this format. Its hint names `others`, too."""
    if to not in FORMATS:
        raise UsageError(f"unknown format --to {to}", hint=f"choose one of {', '.join((*FORMATS, *others))}")


def export(cluster: Cluster, ref: str | None, to: str, directory: Path, *, run: str | None = None) -> Export:
    """Export `run` (None: the newest) of job `ref` (None: the job that is meant) into `directory`.

    Raises UsageError if the format is unknown, its extra is not installed, or the directory has files of others. It
    is complete or unchanged, except that the parts of nodes that do not answer are missing.
    """
    check_format(to)
    if to == TENSORBOARD:
        need_tensorboardx()
    target = usable(directory)
    record = read_history(cluster, ref, run=run, buckets=TRACE_BUCKETS if to == TRACE else BUCKETS, tail=0)
    errors: dict[int, ClusterctlError] = {
        known.node.id: NodeError(known.problem or "", node=known.node.label) for known in record.silent
    }
    with replacing(target, _about(record, to)) as new, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        parts: list[NodePoints] = []
        for outcome in read_points(cluster, record, Path(scratch)) if to != TRACE else ():
            if outcome.error is None:
                parts.append(outcome.get())
            else:
                errors[outcome.node.id] = outcome.error
        count = _write(new, record, to, parts)
        files = tuple(sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()))
    return Export(record, to, directory, files, count, tuple(error for _, error in sorted(errors.items())))


def _about(record: RunRecord, to: str) -> dict[str, Any]:
    return {"to": to, "job": record.job, "run": record.run, "state": record.state, "read_t": record.read_t}


def _write(directory: Path, record: RunRecord, to: str, parts: Iterable[NodePoints]) -> int:
    if to == TRACE:
        return write_trace(directory, record)
    if to == CSV:
        return write_csv(directory, record.marks, itertools.chain.from_iterable(parts))
    return write_tensorboard(directory, parts, record.started_t or record.read_t)
