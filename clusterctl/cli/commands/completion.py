"""`clusterctl completion`."""

from __future__ import annotations

from typer._completion_shared import get_completion_script

from clusterctl.cli.completion import ASKS, SHELLS
from clusterctl.cli.console import Console
from clusterctl.documents.local import CompletionDocument
from clusterctl.errors import UsageError


def completion(console: Console, shell: str, program: str) -> None:
    """Print the script of typer with which a shell completes the command line of `program`."""
    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {shell!r}", hint=f"use one of {', '.join(SHELLS)}")
    script = get_completion_script(prog_name=program, complete_var=ASKS, shell=shell)
    document: CompletionDocument = {"shell": shell, "script": script}
    console.document(document)
    if not console.json:
        print(script)
