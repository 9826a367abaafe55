"""The commands about the command line itself: a script for a shell, and the help of the others."""

from __future__ import annotations

import contextlib
import io
from typing import Annotated, Any

import typer

from clusterctl.cli.completion import SHELLS, one_of
from clusterctl.cli.declarations.root import MORE, NAME, app
from clusterctl.cli.typer_adapter import command
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
    group: Any = typer.main.get_command(app)
    known: Any = group
    for word in words or ():
        if known is not None and not hasattr(known, "commands"):
            raise UsageError(f"clusterctl help: unexpected argument {word!r}", hint="clusterctl help start")
        known = known and known.commands.get(word)
    shown = io.StringIO()
    with (
        contextlib.redirect_stdout(shown),
        contextlib.suppress(typer.Exit),
        group.make_context(NAME, [*(words or ()), "--help"], obj=context.obj) as inner,
    ):
        group.invoke(inner)
    document: HelpDocument = {"help": shown.getvalue()}
    context.obj.console.document(document)
    context.obj.console.output(shown.getvalue().rstrip("\n"))
