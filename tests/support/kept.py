"""Which connection a command used, and the helpers that keep connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.transport import Transport, command
from support.nodes import TestNode
from support.processes import processes_with_argument

Kept = Callable[..., Any]
CONNECTION = command("sh", "-c", "echo $SSH_CONNECTION")


def connection(transport: Transport, node: TestNode) -> bytes:
    """Return what tells one connection of a node from another: the port at our end."""
    port: bytes = transport.run(node, CONNECTION, deadline_s=180).stdout.split()[1]
    return port


def helpers(directory: Path) -> list[int]:
    """Return the processes of the helpers whose sockets are in a directory."""
    return processes_with_argument(str(directory))
