"""Run commands on nodes over SSH or another carrier. No other package quotes, connects or retries.

May import `common` and `errors`; importing it is cheap, since the first connection imports paramiko. Start reading at
`transport.py`.
"""

from __future__ import annotations

from clusterctl.transport.command import Raw, RemoteCommand, RemotePath, command, quote
from clusterctl.transport.fanout import WorkOutcome
from clusterctl.transport.known_hosts import HostKey, Verdict
from clusterctl.transport.remote_process import Completed, RemoteProcess
from clusterctl.transport.secrets import Ask, ask_terminal
from clusterctl.transport.target import Destination, SshSettings
from clusterctl.transport.transport import Transport

__all__ = [
    "Ask",
    "Completed",
    "Destination",
    "HostKey",
    "Raw",
    "RemoteCommand",
    "RemotePath",
    "RemoteProcess",
    "SshSettings",
    "Transport",
    "Verdict",
    "WorkOutcome",
    "ask_terminal",
    "command",
    "quote",
]
