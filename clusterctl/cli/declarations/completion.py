"""The commands about the command line itself: a script for a shell, and the help of the others."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.completion import SHELLS, one_of
from clusterctl.cli.declarations.root import MORE, NAME, app
from clusterctl.cli.typer_adapter import CommandGroup, command
from clusterctl.documents.local import HelpDocument
from clusterctl.errors import UsageError


@command(app, "completion", "clusterctl completion bash", panel=MORE)
def completion(
    context: typer.Context,
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.", autocompletion=one_of(*SHELLS))
    ],
) -> None:
    """Print the script with which a shell completes commands, options, jobs and nodes."""
    from clusterctl.cli.commands.completion import completion

    completion(context.obj.console, shell, NAME)


def command_names() -> list[str]:
    groups = [str(info.name) for info in app.registered_groups]
    return [*(str(info.name) for info in app.registered_commands if not info.hidden), *groups]


@command(app, "help", "clusterctl help start", panel=MORE)
def help_(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Such as start.", autocompletion=command_names)
    ] = None,
) -> None:
    """Show the help of a command, as clusterctl COMMAND --help does."""
    group = typer.main.get_command(app)
    shown = group.context_class(group, info_name=NAME, **group.context_settings)
    for word in words or ():
        if not isinstance(shown.command, CommandGroup):
            raise UsageError(f"clusterctl help: unexpected argument {word!r}", hint="clusterctl help start")
        inner = shown.command.get_command(shown, word)
        shown = inner.context_class(inner, info_name=word, parent=shown, **inner.context_settings)
    text = shown.get_help()
    document: HelpDocument = {"help": text + "\n"}
    context.obj.console.document(document)
    context.obj.console.output(text)
