"""A command of the user on a node, run by the agent, whose last message proves that the output is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from clusterctl.cluster.agent_call import AGENT_ENDED, NO_AGENT
from clusterctl.cluster.cluster import Cluster
from clusterctl.common.safe_json import is_whole
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory import Node
from clusterctl.transport import Raw, RemoteCommand
from clusterctl.transport.command import sh_text

MOST_BYTES = 1 << 20  # in a piece
MOST_CODE = 255


def run_command(cluster: Cluster, node: Node, command: RemoteCommand, take: Callable[[bytes, bool], None]) -> int:
    """Run a command to its end, without a deadline. Returns its exit code, 128 + N for signal N.

    `take(piece, is_error)` receives the output as it arrives, in the calling thread. Raises UnreachableError if the
    connection is lost; as with `ssh`, the command may then keep running. Where no agent can run, as without Python or
    on a full disk, SSH runs the command without it.
    """
    with contextlib.ExitStack() as stack:
        certain: tuple[str, ...] = (NO_AGENT, AGENT_ENDED)  # signs that the command has not begun
        try:
            call = stack.enter_context(cluster.call(node, {"op": "exec", "script": _script(command)}))
            certain = (NO_AGENT,)
            message = call.receive()
        except NodeError as exc:
            if node.via == "ssh" and exc.details.get("reason") in certain:
                return cluster.transport.stream(node, command, take)
            raise
        while "done" not in message:
            name, size = next(iter(message.items()), ("", 0))
            if name not in ("stdout", "stderr") or not is_whole(size) or not 0 < size <= MOST_BYTES:
                raise ValueError(f"exec: {name}"[:MOST_CODE])
            while size:
                piece = call.read(size)
                size -= len(piece)
                take(piece, name == "stderr")
            message = call.receive()
    code = message["done"]["exit_code"]
    if not is_whole(code) or not 0 <= code <= MOST_CODE:
        raise ValueError("exec: exit_code")
    return int(code)


def _script(command: RemoteCommand) -> str:
    """Return the command as text for a POSIX shell. Raises UsageError as `transport.quote` does."""
    script = sh_text(command)
    if not command.argv:
        raise UsageError("the command to run on the nodes is empty")
    if "\0" in script:
        raise UsageError("a command cannot contain a NUL byte", hint="send binary data on standard input")
    return script if any(isinstance(argument, Raw) for argument in command.argv) else f"exec {script}"
