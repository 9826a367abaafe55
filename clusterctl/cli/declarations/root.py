"""The program as typer sees it: its name, its help and the global options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import completion
from clusterctl.cli.declarations.fake import fake_app
from clusterctl.cli.typer_adapter import CommandGroup

NAME = "clusterctl"
#: The headings of `clusterctl --help`.
PREPARE, RUN, LOOK, MORE = "Prepare", "Run", "Look", "More"
app = typer.Typer(
    name=NAME,
    cls=CommandGroup,
    help="Train models on plain SSH machines.",
    epilog="These options work before or after the command. For a command's own options: clusterctl COMMAND --help",
    rich_markup_mode=None,  # rich takes longer to import than most commands take
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(fake_app, name="fake", rich_help_panel=MORE)


@app.callback()
def _global(
    conf: Annotated[Path | None, typer.Option(metavar="PATH", help="Default: CLUSTERCTL_CONF, else conf.py.")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NODESET", help="node[0-3], host names, tags, failed@last.", autocompletion=completion.nodes
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, or one line per event.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a traceback with errors.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Declare the global options for help and completion; `split` removes them before typer parses the rest."""
