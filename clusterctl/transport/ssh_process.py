"""A running command in a channel of an SSH connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from paramiko.channel import Channel
from paramiko.ssh_exception import ChannelException

from clusterctl.errors import ClusterctlError
from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel, speaking
from clusterctl.transport.connection import Connection, ask_to_run, await_begin
from clusterctl.transport.remote_process import CHUNK_BYTES, SLICE_S, Deadline, RemoteProcess, Take

NO_STATUS = 255  # as in ssh, if the server does not report how a command ended


class SshProcess(RemoteProcess):
    """A running command in a channel.

    With `drain_stderr` standard error is read as it arrives, so that neither side blocks on it; otherwise `finish` and
    `stream` read it. Until something is read, it is not known that the server has started the command.
    """

    def __init__(
        self,
        connection: Connection,
        channel: Channel,
        *,
        label: str,
        where: str,
        what: str,
        stderr_limit: int,
        drain_stderr: bool,
    ) -> None:
        super().__init__(label=label, where=where, what=what, stderr_limit=stderr_limit)
        self._connection = connection
        self._channel = channel
        self._has_begun = False
        channel.settimeout(SLICE_S)  # paramiko has one timeout for both directions
        if drain_stderr:
            channel.take_errors = self._stderr.add

    def await_begin(self) -> None:
        """Wait until the server has started the command. Raises UnreachableError or NodeError."""
        if not self._has_begun:
            with translated(self._connection, self._label, self._where, self._what):
                await_begin(self._channel, OPEN_CHANNEL_S)
            self._has_begun = True

    def close_stdin(self) -> None:
        try:
            with speaking(self._channel):
                self._channel.shutdown_write()
        except paramiko_loader.errors():
            return

    def wait(self, deadline_s: float | None = None) -> int:
        if not self._channel.status_event.wait(deadline_s):
            raise failures.overdue(self._label, self._where, self._what, deadline_s or 0)
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if _ended_by_peer(self._channel):
            return NO_STATUS
        raise self.lost()

    def close(self) -> None:
        with contextlib.suppress(*paramiko_loader.errors()):  # the connection may have ended
            close_channel(self._channel)

    def _send(self, view: memoryview) -> int:
        try:
            with speaking(self._channel):
                sent = int(self._channel.send(bytes(view[: self._channel.out_max_packet_size])))
        except TimeoutError:
            return 0
        except EOFError as exc:  # the end of the connection, not of the channel
            raise self.lost() from exc
        except paramiko_loader.errors() as exc:
            raise self._unwritable() from exc
        if sent == 0:
            raise self._unwritable()
        return sent

    def _receive(self, size: int) -> bytes | None:
        self.await_begin()
        try:
            with speaking(self._channel):
                piece: bytes = self._channel.recv(size)
        except TimeoutError:
            return None
        except paramiko_loader.errors() as exc:
            raise self.lost() from exc
        if not piece and not self._channel.eof_received and not _ended_by_peer(self._channel):
            raise self.lost()
        return piece

    def _pump(self, take: Take, deadline: Deadline) -> None:
        channel, bell = self._channel, _Bell()
        channel.in_buffer.set_event(bell)
        channel.in_stderr_buffer.set_event(bell)
        while True:
            ended = channel.eof_received or channel.closed  # checked first: no data follows it
            taken = False
            if channel.recv_ready():
                take(self._received(channel.recv), False)
                taken = True
            if channel.recv_stderr_ready():
                take(self._received(channel.recv_stderr), True)
                taken = True
            if ended and not taken:
                break
            if deadline.passed or not (taken or bell.wait(deadline.left())):
                raise failures.overdue(self._label, self._where, self._what, deadline.seconds or 0)
        if not channel.eof_received and not _ended_by_peer(channel):
            raise self.lost()

    def _received(self, receive: Callable[[int], bytes]) -> bytes:
        """Return the data that is available. Reading may widen the window, which needs the connection."""
        try:
            with speaking(self._channel):
                return receive(CHUNK_BYTES)
        except paramiko_loader.errors() as exc:
            raise self.lost() from exc

    def _unwritable(self) -> ClusterctlError:
        if _ended_by_peer(self._channel) or not self._channel.closed:
            return failures.input_closed(self._label, self._where, self._what)
        return self.lost()


class _Bell:
    """An event that is set when either of two streams has data; an empty one does not clear it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Do nothing: paramiko calls this when one of the streams is empty."""

    def wait(self, timeout_s: float | None) -> bool:
        rang = self._event.wait(timeout_s)
        self._event.clear()
        return rang


def _ended_by_peer(channel: Channel) -> bool:
    """Return True if the server closed the channel, and False if the connection ended instead."""
    return bool(getattr(channel, "ended_by_peer", False))


def start(
    connection: Connection, command: bytes, *, label: str, where: str, what: str, stderr_limit: int, drain_stderr: bool
) -> SshProcess:
    """Run a quoted command in a new channel of a connection. Raises UnreachableError or NodeError.

    With `drain_stderr` a command that the server refuses is an error of the first `read`.
    """
    channel = None
    try:
        with translated(connection, label, where, what):
            channel = connection.open_session(timeout=OPEN_CHANNEL_S)
            process = SshProcess(
                connection,
                channel,
                label=label,
                where=where,
                what=what,
                stderr_limit=stderr_limit,
                drain_stderr=drain_stderr,
            )
            ask_to_run(channel, command)
        if not drain_stderr:
            process.await_begin()
    except ClusterctlError:
        if channel is not None:
            with contextlib.suppress(*paramiko_loader.errors()):
                close_channel(channel)
        raise
    return process


@contextlib.contextmanager
def translated(connection: Connection, label: str, where: str, what: str) -> Iterator[None]:
    """Translate the errors of opening a channel and of starting a command in it: UnreachableError or NodeError."""
    try:
        yield
    except paramiko_loader.errors() as exc:
        if not connection.is_active():
            raise failures.lost(label, where, what) from exc
        reason = exc.text if isinstance(exc, ChannelException) else str(exc) or type(exc).__name__
        raise failures.no_channel(label, where, reason) from exc
