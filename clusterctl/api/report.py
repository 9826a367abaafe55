"""A run as files on this machine: its report as one HTML file, and exports for other programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.api.opening import CallResult
from clusterctl.cluster import Cluster
from clusterctl.common.files import write_atomic
from clusterctl.common.paths import is_job_id
from clusterctl.documents.jobs import ReportDocument
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.export import Export
from clusterctl.export import export as write_export
from clusterctl.observe.record.history import read_history
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import unheard
from clusterctl.report.page import BEGIN, render

MODE = 0o644


@dataclass(frozen=True)
class Reported(CallResult):
    """The report of a run in `file`, which has so many `bytes`. `errors`: one for each node that is missing in it."""

    record: RunRecord
    file: Path
    bytes: int
    errors: tuple[ClusterctlError, ...]


@dataclass(frozen=True)
class Exported(CallResult):
    """The `files` of an export, and the `count` of points or events in them. `errors` are those of nodes left out."""

    directory: Path
    files: tuple[Path, ...]
    count: int
    errors: tuple[ClusterctlError, ...]
    written: Export = field(repr=False, compare=False)


def place(output: Path | None) -> tuple[Path | None, Path]:
    """Return the file that `output` names, or None and the directory of a report that is named like its run.

    Raises UsageError or RefusedError if it is clear by now that this is no place for a report.
    """
    if output is None or output.is_dir():
        return None, output or Path()
    _check_target(output)
    return output, output.parent


def report(cluster: Cluster, named: Reference, file: Path | None, directory: Path = Path()) -> Reported:
    """Write the report of a run to a file, by default one in `directory` that is named like the run.

    An older report goes. Raises UsageError or RefusedError if that is no place for a report.
    """
    record = read_history(cluster, named.job, run=named.run)
    target = file or directory / _name(record)
    size = _write(record, target)
    errors = tuple(NodeError(known.problem or "", node=known.node.label) for known in record.silent)
    document: ReportDocument = {
        "job": record.job,
        "run": record.run,
        "state": record.state,
        "file": str(target),
        "bytes": size,
        **record.members.to_json(),
    }
    return Reported(record, target, size, errors, document=document, problem=unheard(errors, len(record.nodes)))


def export(cluster: Cluster, named: Reference, to: str, directory: Path) -> Exported:
    """Write a run into a directory in the format `to`. See `clusterctl.export.export`."""
    written = write_export(cluster, named.job, to, directory, run=named.run)
    files = tuple(written.directory / name for name in written.files)
    more: Any = {"document": written.to_json(), "problem": written.problem}
    return Exported(written.directory, files, written.count, written.errors, written, **more)


def _check_target(file: Path) -> None:
    """Refuse a file in a directory that does not exist, and one that is not a report."""
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is not a directory", hint=f"mkdir -p {file.parent}")
    if file.exists() and not _begins(file, BEGIN.encode()):
        raise RefusedError(f"{file} is not a report of clusterctl", hint="choose another file: -o FILE")


def _begins(file: Path, data: bytes) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as there:
        return there.read(len(data)) == data


def _name(record: RunRecord) -> str:
    """Return the name of the file. Nodes name the job, and could choose any name but an id."""
    job = record.job if is_job_id(record.job) else "report"
    return f"{job}-run{int(record.run)}.html"


def _write(record: RunRecord, file: Path) -> int:
    _check_target(file)
    data = render(record).encode()
    write_atomic(file, data, MODE, durable=False)
    return len(data)
