"""`clusterctl export`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from clusterctl.api.report import export as write
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.export import TENSORBOARD, TRACE, Export


def export(invocation: Invocation, to: str, directory: Path, job: str | None, *, run: int | None) -> None:
    with invocation.cluster_of(job, whole=True) as cluster:
        named = invocation.run_of(cluster, job, run)
        with invocation.progress.operation("exporting"):
            exported = write(cluster, named, to, directory)
        invocation.console.say(_summary(exported.written))
        for line in _next_steps(exported.written):
            invocation.console.say(line)
        invocation.console.finish(exported.document, exported.problem)


def _summary(exported: Export) -> str:
    what = plural(exported.count, "event" if exported.to == TRACE else "point")
    shown = plural(len(exported.files), "file") if exported.to == TENSORBOARD else " and ".join(exported.files)
    return f"exported {what} of {exported.record.name} into {exported.directory}/: {shown}"


def _next_steps(exported: Export) -> Iterator[str]:
    where = shlex.quote(str(exported.directory))
    if exported.to == TENSORBOARD:
        yield f"next: tensorboard --logdir {where}"
    elif exported.to == TRACE:
        yield f"next: open {where}/{exported.files[0]} in https://ui.perfetto.dev"
