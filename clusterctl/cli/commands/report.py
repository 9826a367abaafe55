"""`clusterctl report`: a run as one HTML file; and the reports that `collect` and an attached `start` write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clusterctl.api.report import place
from clusterctl.api.report import report as write
from clusterctl.cli.console import human_bytes
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.errors import ClusterctlError
from clusterctl.launch import Launch
from clusterctl.observe.record.references import Reference

NAME = "report.html"  # in the directory of `collect`


def report(invocation: Invocation, job: str | None, output: Path | None, run: int | None) -> None:
    file, directory = place(output)
    with invocation.cluster_of(job, whole=True) as cluster:
        written = write(cluster, invocation.run_of(cluster, job, run), file, directory)
    record = written.record
    invocation.console.say(f"{record.name}, {record.state}: {written.file} ({human_bytes(written.bytes)})")
    for error in written.errors:
        invocation.console.warn(f"{error.node} is missing in it: {error.message}")
    invocation.console.finish(written.document, written.problem)


def attempt_report(invocation: Invocation, cluster: Cluster, job: str, run: str, file: Path | None) -> Path | None:
    """Write the report of a run that another command is about; a failure is only a warning. Return its path."""
    try:
        target = write(cluster, Reference(job, run), file).file
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
    ended: list[Launch] = []

    def followed(invocation: Invocation, cluster: Cluster, run: Launch) -> Any:
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
