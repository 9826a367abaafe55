"""A loan of a pooled connection, for a library that works on paramiko's objects."""

from __future__ import annotations

import contextlib
from typing import Any

from paramiko.channel import Channel
from paramiko.sftp_client import SFTPClient

from clusterctl.errors import UnreachableError
from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel
from clusterctl.transport.connection import run_in
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh_process import translated
from clusterctl.transport.target import Target

SFTP_STALL_S = 60.0


class ConnectionLease:
    """The connection to a node, which others may use at the same time. It is not evicted until `close`.

    Every method raises UnreachableError if the connection is lost, and NodeError if the server refuses a request or
    does not answer it within 15 s.
    """

    def __init__(self, pool: Pool, target: Target, label: str) -> None:
        self._label, self._where = label, target.where
        self._lease = contextlib.ExitStack()
        self.connection = self._lease.enter_context(pool.lease(target))

    def session(self) -> Channel:
        """Open a channel for one command."""
        with self.translated("opening a channel"):
            return self.connection.open_session()

    def start(self, channel: Channel, command: str) -> None:
        """Run a line of the login shell in a new channel."""
        with self.translated("starting a command"):
            run_in(channel, command.encode("utf-8", "surrogateescape"), OPEN_CHANNEL_S)

    def sftp(self) -> Any:
        """Return an SFTP client of paramiko. A call of it that makes no progress for 60 s raises TimeoutError."""
        channel = self.session()
        try:
            with self.translated("sftp"):
                run_in(channel, b"sftp", OPEN_CHANNEL_S, kind="subsystem")
                channel.settimeout(SFTP_STALL_S)
                return SFTPClient(channel)
        except BaseException:
            with contextlib.suppress(*paramiko_loader.errors()):
                close_channel(channel)
            raise

    def lost(self, what: str) -> UnreachableError:
        """Return the error for a connection that was lost during `what`."""
        return failures.lost(self._label, self._where, what)

    def close(self) -> None:
        """Give the connection back, open. Safe to call again."""
        self._lease.close()

    def translated(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Translate the errors of paramiko in a block that does `what`."""
        return translated(self.connection, self._label, self._where, what)
