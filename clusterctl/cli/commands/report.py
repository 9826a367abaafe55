"""`clusterctl report`: a run as one HTML file; and the reports that `collect` and an attached `start` write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli.console import human_bytes
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.launch import Run
    from clusterctl.observe.record.model import RunRecord

NAME = "report.html"  # in the directory of `collect`
MODE = 0o644


def report(invocation: Invocation, job: str | None, output: Path | None, run: int | None) -> None:
    from clusterctl.observe.record.history import read_history
    from clusterctl.observe.record.status import unheard

    if output is not None and not output.is_dir():
        _check_target(output)
    with invocation.cluster_of(job, whole=True) as cluster:
        named = invocation.run_of(cluster, job, run)
        record = read_history(cluster, named.job, run=named.run)
    file = _target(record, output)
    size = write_report(record, file)
    invocation.console.say(f"{record.name}, {record.state}: {file} ({human_bytes(size)})")
    for node in record.silent:
        invocation.console.warn(f"{node.node.label} is missing in it: {node.problem}")
    document = {"job": record.job, "run": record.run, "state": record.state, "file": str(file), "bytes": size}
    errors = [NodeError(node.problem or "", node=node.node.label) for node in record.silent]
    invocation.console.finish({**document, **record.members.to_json()}, unheard(errors, len(record.nodes)))


def write_report(record: RunRecord, file: Path) -> int:
    """Write the report of a run in place of an earlier one, and return its size in bytes."""
    from clusterctl.common.files import write_atomic
    from clusterctl.report.page import render

    _check_target(file)
    data = render(record).encode()
    write_atomic(file, data, MODE, durable=False)
    return len(data)


def _target(record: RunRecord, output: Path | None) -> Path:
    """Return the file to write. Nodes name the job, and could choose any name but an id."""
    from clusterctl.common.paths import is_job_id

    job = record.job if is_job_id(record.job) else "report"
    name = f"{job}-run{int(record.run)}.html"
    return Path(name) if output is None else output / name if output.is_dir() else output


def _check_target(file: Path) -> None:
    """Refuse a file in a directory that does not exist, and one that is not a report."""
    from clusterctl.report.page import BEGIN

    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is not a directory", hint=f"mkdir -p {file.parent}")
    if file.exists() and not _begins(file, BEGIN.encode()):
        raise RefusedError(f"{file} is not a report of clusterctl", hint="choose another file: -o FILE")


def _begins(file: Path, data: bytes) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as there:
        return there.read(len(data)) == data


def attempt_report(invocation: Invocation, cluster: Cluster, job: str, run: str, file: Path | None) -> Path | None:
    """Write the report of a run that another command is about; a failure is only a warning. Return its path."""
    from clusterctl.observe.record.history import read_history

    try:
        record = read_history(cluster, job, run=run)
        target = file or _target(record, None)
        write_report(record, target)
    except (ClusterctlError, OSError) as exc:
        invocation.console.warn(f"no report was written: {exc}     to try again: clusterctl report {job}")
        return None
    except Exception as exc:  # noqa: BLE001 - it must not change how the command ends
        invocation.console.warn(f"no report was written: {exc!r}     for details: clusterctl report {job}")
        return None
    invocation.console.say(f"report: {target}")
    return target


@contextlib.contextmanager
def report_at_end(
    invocation: Invocation, cluster: Cluster, follow: Callable[..., Any], *, attached: bool
) -> Iterator[Callable[..., Any]]:
    """Yield `follow`; with REPORT, write the report of the attached run that it follows once that run has ended."""
    if not (attached and cluster.settings.report):
        yield follow
        return
    ended: list[Run] = []

    def followed(invocation: Invocation, cluster: Cluster, run: Run) -> Any:
        ended.append(run)
        try:
            view = follow(invocation, cluster, run)
        except SystemExit:  # detached by a signal
            ended.clear()
            raise
        if view.ended is None:  # detached by a key
            ended.clear()
        return view

    try:
        yield followed
    finally:
        for run in ended:
            attempt_report(invocation, cluster, run.job, run.run, None)
