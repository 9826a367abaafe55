"""`clusterctl export`: a run as files for other programs; or its state, served to Prometheus."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.api.report import export as write
from clusterctl.cli.commands.metrics import metrics
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.errors import UsageError
from clusterctl.export import TENSORBOARD, TRACE, Export

PROMETHEUS = "prometheus"
LISTEN = "127.0.0.1:9464"


def export(
    invocation: Invocation, to: str, words: Sequence[str], output: Path | None, *, run: int | None, listen: str | None
) -> None:
    """Export the run that `words` name. Without -o the first of them is the directory, as in older versions."""
    if to == PROMETHEUS:
        if output is not None or run is not None or len(words) > 1:
            raise UsageError("export --to prometheus serves the newest run of a JOB, and writes no files")
        metrics(invocation, listen or LISTEN, words[0] if words else None)
        return
    if listen is not None:
        raise UsageError("--listen is for --to prometheus only")
    if output is None and not words:
        raise UsageError("export needs a directory: -o DIR")
    directory, names = (output, words) if output is not None else (Path(words[0]), words[1:])
    if len(names) > 1:
        raise UsageError(f"clusterctl export: unexpected argument {names[1]!r}", hint="clusterctl export --help")
    job = names[0] if names else None
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
