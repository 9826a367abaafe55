"""Run commands on nodes over SSH. No other package quotes, connects or retries.

May import `errors`; importing it is cheap, since the first connection imports paramiko. Start reading at
`transport.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.transport.command import Command, Raw, RemotePath, command, quote
from clusterctl.transport.fanout import Outcome
from clusterctl.transport.known_hosts import HostKey, Verdict
from clusterctl.transport.target import Node, SshSettings
from clusterctl.transport.transport import Transport

if TYPE_CHECKING:
    from clusterctl.transport.remote_process import Completed, RemoteProcess

__all__ = [
    "Command",
    "Completed",
    "HostKey",
    "Node",
    "Outcome",
    "Raw",
    "RemotePath",
    "RemoteProcess",
    "SshSettings",
    "Transport",
    "Verdict",
    "command",
    "quote",
]


def __getattr__(name: str) -> Any:
    if name in ("Completed", "RemoteProcess"):
        from clusterctl.transport import remote_process

        return getattr(remote_process, name)
    raise AttributeError(name)
