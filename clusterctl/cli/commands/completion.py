"""`clusterctl completion`."""

from __future__ import annotations

from clusterctl.cli.completion.scripts import SCRIPTS
from clusterctl.cli.invocation import Invocation


def completion(invocation: Invocation, shell: str) -> None:
    from clusterctl.errors import UsageError

    if shell not in SCRIPTS:
        raise UsageError(f"there is no completion for {shell!r}", hint=f"use one of {', '.join(SCRIPTS)}")
    invocation.console.document({"shell": shell, "script": SCRIPTS[shell]})
    if not invocation.console.json:
        print(SCRIPTS[shell])
