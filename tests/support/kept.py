"""Which connection a command used, and the helpers that keep connections."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.transport import Transport, command
from support.nodes import TestNode
from support.processes import processes_with_argument, wait_until

Kept = Callable[..., Any]
CONNECTION = command("sh", "-c", "echo $SSH_CONNECTION")


def connection(transport: Transport, node: TestNode) -> bytes:
    """Return what tells one connection of a node from another: the port at our end."""
    port: bytes = transport.run(node, CONNECTION, deadline_s=180).stdout.split()[1]
    return port


def helpers(directory: Path) -> list[int]:
    """Return the processes of the helpers whose sockets are in a directory."""
    return processes_with_argument(str(directory))


def freeze(pid: int) -> None:
    """Stop a process. One that waits for a processor stops later."""
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
