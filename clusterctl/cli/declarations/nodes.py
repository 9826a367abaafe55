"""The commands about the nodes themselves, whatever runs there."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.declarations.options import FoldOption, JobArgument
from clusterctl.cli.declarations.root import MORE, PREPARE, app
from clusterctl.cli.typer_adapter import command
from clusterctl.documents.local import DisconnectDocument


@command(app, "trust", "clusterctl trust --yes", panel=PREPARE)
def trust(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Record unknown keys without asking.")] = False,
) -> None:
    """Show the hosts' keys and record the ones you accept."""
    from clusterctl.cli.commands.trust import trust

    trust(context.obj.invocation(), yes=yes)


@command(app, "check", "clusterctl check", panel=PREPARE)
def check(context: typer.Context) -> None:
    """Check the nodes and the network between them for problems that would stop a run."""
    from clusterctl.cli.commands.check import check

    check(context.obj.invocation())


@command(app, "exec", "clusterctl exec -- df -h .", panel=MORE)
def exec_(
    context: typer.Context,
    job: JobArgument = None,
    in_job: Annotated[
        bool, typer.Option("--in-job", help="Run it in the directory of JOB instead of the home directory.")
    ] = False,
    fold: FoldOption = None,
) -> None:
    """Run a command on the nodes and fold identical output.

    It runs in the home directory, or with --in-job in the directory of a job.

    One argument after -- is a shell command line ('ls | wc -l'); several are a program and its arguments. Standard
    input is not forwarded.
    """
    from clusterctl.cli.commands.exec import exec_

    exec_(context.obj.invocation(), job, in_job, fold)


@command(app, "task", "clusterctl task deploy -- --branch=main", panel=MORE)
def task(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Task of tasks.py or fabfile.py.")] = None,
    listing: Annotated[bool, typer.Option("--list", "-l", help="List the tasks; run none.")] = False,
    fold: FoldOption = None,
) -> None:
    """Call a Fabric task of the tasks.py or fabfile.py beside conf.py for every node, and fold identical output.

    Everything after -- is for the task; -- --help shows its arguments.
    """
    from clusterctl.cli.commands.task import task

    task(context.obj.invocation(), name, listing=listing, fold=fold)


@command(app, "prune", "clusterctl prune --keep 5 --older-than 7d", panel=MORE)
def prune(
    context: typer.Context,
    keep: Annotated[int, typer.Option("--keep", min=0, metavar="N", help="Keep the N newest jobs.")] = 3,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only jobs unused this long: 12h, 7d.")
    ] = "1d",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be removed; remove nothing.")] = False,
) -> None:
    """Remove old jobs and content that no job needs any more."""
    from clusterctl.cli.commands.prune import prune

    prune(context.obj.invocation(), keep=keep, older_than=older_than, yes=yes, plan=plan)


@command(app, "disconnect", "clusterctl disconnect", hidden=True)
def disconnect(context: typer.Context) -> None:
    """Do nothing: connections are no longer kept between commands."""
    document: DisconnectDocument = {"helpers": []}
    context.obj.console.document(document)
    context.obj.console.say(
        "nothing to close: connections are no longer kept between commands; docs/carriers.md shows how ssh keeps them"
    )
