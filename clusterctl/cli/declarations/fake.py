"""The commands of `clusterctl fake`, their options and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import completion
from clusterctl.cli.typer_adapter import GLOBAL_HELP, CommandGroup, command

FakeDir = Annotated[Path, typer.Option("--dir", metavar="PATH", help="Directory of the cluster.")]
FakeNodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="2 or node2.", autocompletion=completion.fake_nodes)
]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="embedded (no root, no sshd), ssh or docker.",
        autocompletion=completion.one_of("embedded", "ssh", "docker"),
    ),
]
SUMMARY = "Run a fake cluster of SSH servers or containers on this machine."
fake_app = typer.Typer(
    cls=CommandGroup,
    help=SUMMARY,
    short_help=SUMMARY,
    epilog=GLOBAL_HELP,
    rich_markup_mode=None,
)


@command(fake_app, "up", "clusterctl fake up -n 4 --dir fake")
def fake_up(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=1000, metavar="N", help="Number of nodes.")] = 4,
    backend: BackendOption = "embedded",
    directory: FakeDir = Path("fake"),
) -> None:
    """Start a fake cluster and write a conf.py for it."""
    from clusterctl.cli.commands.fake import up

    up(context.obj.console, nodes, backend, directory)


@command(fake_app, "down", "clusterctl fake down --dir fake")
def fake_down(
    context: typer.Context,
    directory: FakeDir = Path("fake"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="End running jobs without asking.")] = False,
) -> None:
    """Stop a fake cluster and every process on it, and remove its nodes."""
    from clusterctl.cli.commands.fake import down

    down(context.obj.console, directory, yes=yes)


@command(fake_app, "status", "clusterctl fake status --dir fake")
def fake_status(context: typer.Context, directory: FakeDir = Path("fake")) -> None:
    """Show the nodes of a fake cluster."""
    from clusterctl.cli.commands.fake import status

    status(context.obj.console, directory)


@command(fake_app, "kill", "clusterctl fake kill node2")
def fake_kill(context: typer.Context, node: FakeNodeArgument, directory: FakeDir = Path("fake")) -> None:
    """Kill a node and everything on it at once, like a power cut."""
    _harm(context, node, "kill", directory)


@command(fake_app, "pause", "clusterctl fake pause node2")
def fake_pause(context: typer.Context, node: FakeNodeArgument, directory: FakeDir = Path("fake")) -> None:
    """Freeze a node and everything on it."""
    _harm(context, node, "pause", directory)


@command(fake_app, "cut", "clusterctl fake cut node2")
def fake_cut(context: typer.Context, node: FakeNodeArgument, directory: FakeDir = Path("fake")) -> None:
    """Disconnect a node from the network (docker only)."""
    _harm(context, node, "cut", directory)


@command(fake_app, "heal", "clusterctl fake heal node2")
def fake_heal(context: typer.Context, node: FakeNodeArgument, directory: FakeDir = Path("fake")) -> None:
    """Undo kill, pause or cut on a node."""
    from clusterctl.cli.commands.fake import heal

    heal(context.obj.console, node, directory)


def _harm(context: typer.Context, node: str, fault: str, directory: Path) -> None:
    from clusterctl.cli.commands.fake import harm

    harm(context.obj.console, node, fault, directory)
