"""`clusterctl disconnect`, which earlier versions had for connections that outlived a command."""

from __future__ import annotations

from clusterctl.cli.console import Console


def disconnect(console: Console) -> None:
    console.document({"helpers": []})
    console.say(
        "nothing to close: connections are no longer kept between commands; docs/carriers.md shows how ssh keeps them"
    )
