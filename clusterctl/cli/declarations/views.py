"""The commands that make something of the record of a run: files, pages and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import completion
from clusterctl.cli.declarations.options import JobArgument, RunArgument, RunOption
from clusterctl.cli.declarations.root import LOOK, app
from clusterctl.cli.typer_adapter import command


@command(app, "report", "clusterctl report -o report.html", panel=LOOK)
def report(
    context: typer.Context,
    job: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: ./JOB...-runN.html")
    ] = None,
    run: RunOption = None,
) -> None:
    """Write the story of a run as one HTML file: outcome, first cause, curves, timeline, settings, last log lines."""
    from clusterctl.cli.commands.report import report

    report(context.obj.invocation(), job, output, run)


@command(app, "diff", "clusterctl diff JOB20261121-081530/1 JOB20261121-081530/2", panel=LOOK)
def diff(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="JOB (its newest run), JOB/N for its run N, or a name.", autocompletion=completion.runs
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The run to compare it with.", autocompletion=completion.runs)],
) -> None:
    """Compare two runs: settings, arguments, ENV, packages, files, metrics. Only differences are shown."""
    from clusterctl.cli.commands.diff import diff

    diff(context.obj.invocation(), a, b)


@command(app, "export", "clusterctl export --to tensorboard -o logs/first", panel=LOOK)
def export(
    context: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="tensorboard, trace or csv: files; prometheus: serve them until Ctrl-C.",
            autocompletion=completion.one_of("tensorboard", "trace", "csv", "prometheus"),
        ),
    ],
    job: RunArgument = None,
    old: Annotated[str | None, typer.Argument(hidden=True, metavar="", autocompletion=completion.runs)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="New directory, or that of an export to replace."),
    ] = None,
    run: RunOption = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="prometheus: on this machine. Default: 127.0.0.1:9464."),
    ] = None,
) -> None:
    """Write the metrics and the timeline of a run to files for other programs, or serve its state to Prometheus.

    The older order of arguments, DIR JOB without -o, works as before.
    """
    from clusterctl.cli.commands.export import export

    export(context.obj.invocation(), to, [word for word in (job, old) if word], output, run=run, listen=listen)


@command(app, "metrics", "clusterctl metrics --listen 127.0.0.1:9464", hidden=True)
def metrics(
    context: typer.Context,
    job: JobArgument = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address on this machine.")
    ] = "127.0.0.1:9464",
) -> None:
    """Do what export --to prometheus does, under an older name."""
    from clusterctl.cli.commands.export import metrics

    metrics(context.obj.invocation(), listen, job)
