"""`clusterctl disconnect`."""

from __future__ import annotations

from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation


def disconnect(invocation: Invocation) -> None:
    from clusterctl.transport.keep.ending import end_helpers
    from clusterctl.transport.keep.place import directory_of

    ended = end_helpers(directory_of(invocation.cache_dir))
    invocation.console.document(
        {"helpers": [{"pid": one.pid, "closed": None if one.closed is None else list(one.closed)} for one in ended]}
    )
    for one in ended:
        if one.closed is None:
            invocation.console.say(f"killed the helper {one.pid}, which did not answer")
        else:
            closed = ", ".join(one.closed) or "none was open"
            invocation.console.say(f"closed {plural(len(one.closed), 'connection')}: {closed}")
    if not ended:
        invocation.console.say("no connections were kept; KEEP_CONNECTIONS_S in conf.py keeps them")
