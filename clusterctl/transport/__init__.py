"""Run commands on nodes over SSH or another carrier. No other package quotes, connects or retries.

May import `common` and `errors`; importing it is cheap, since the first connection imports paramiko. Start reading at
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
    from clusterctl.transport.secrets import Ask, ask_terminal

#: The module of each name that is imported when it is first used.
_LATER = {
    "Ask": "secrets",
    "Completed": "remote_process",
    "RemoteProcess": "remote_process",
    "ask_terminal": "secrets",
}

__all__ = [
    "Ask",
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
    "ask_terminal",
    "command",
    "quote",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(f"clusterctl.transport.{_LATER[name]}"), name)
    raise AttributeError(name)
