"""The command that prints a script for a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.declarations.root import app
from clusterctl.cli.typer_adapter import command


@command(app, "completion", "clusterctl completion bash")
def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script with which a shell completes commands, options, jobs and nodes."""
    from clusterctl.cli.commands.completion import completion

    completion(context.obj, shell)
