"""The command that prints a script for a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.completion import SHELLS, one_of
from clusterctl.cli.declarations.root import NAME, app
from clusterctl.cli.typer_adapter import command


@command(app, "completion", "clusterctl completion bash")
def completion(
    context: typer.Context,
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.", autocompletion=one_of(*SHELLS))
    ],
) -> None:
    """Print the script with which a shell completes commands, options, jobs and nodes."""
    from clusterctl.cli.commands.completion import completion

    completion(context.obj.console, shell, NAME)
