"""A running command on a node: its three streams and its exit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import ClusterctlError
from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel, speaking

if TYPE_CHECKING:
    from paramiko.channel import Channel

    from clusterctl.transport.connection import Connection

CHUNK_BYTES = 256 * 1024
STDERR_TAIL_BYTES = 64 * 1024
NO_STATUS = 255  # as in ssh, if the server does not report how a command ended
SLICE_S = 0.2  # paramiko has one timeout for both directions, so we wait in slices and keep our own deadlines
QUICK_STDIN_BYTES = 16 * 1024
# Receives a piece of output as it arrives, and True if it was written to standard error.
Take = Callable[[bytes, bool], None]


class Completed(NamedTuple):
    """The result of a command. `exit_code` is 128 + the signal's number if a signal killed it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class RemoteProcess:
    """A running command on a node.

    One thread may write while another reads. The last `stderr_limit` bytes of standard error are kept: with
    `drain_stderr` they are read as they arrive, so that neither side blocks on them; otherwise `finish` and `stream`
    read them. Closing ends our streams, not the command: as with `ssh`, it sees the end of its input and a broken
    pipe. Every method raises UnreachableError if the connection is lost, and NodeError after its deadline.
    """

    def __init__(
        self, channel: Channel, *, label: str, where: str, what: str, stderr_limit: int, drain_stderr: bool
    ) -> None:
        self._channel = channel
        channel.settimeout(SLICE_S)
        self._label, self._where, self._what = label, where, what
        self._buffer = bytearray()
        self._stderr = _Tail(stderr_limit)
        if drain_stderr:
            channel.take_errors = self._stderr.add

    def write(
        self, data: bytes | bytearray | memoryview, *, deadline_s: float | None = None, stall_s: float | None = None
    ) -> None:
        """Send all of `data` to the command's input, blocking while the command does not read.

        `deadline_s` limits the whole write, `stall_s` the time without progress. Raises NodeError with
        details["reason"] "input_closed" if the command has exited.
        """
        view = memoryview(data).cast("B")
        deadline, stall = _Deadline(deadline_s), _Deadline(stall_s)
        while view:
            try:
                with speaking(self._channel):
                    sent = self._channel.send(bytes(view[: self._channel.out_max_packet_size]))
            except TimeoutError as exc:
                self._check(deadline, exc)
                self._check(stall, exc)
                continue
            except EOFError as exc:  # the end of the connection, not of the channel
                raise self._lost() from exc
            except paramiko_loader.errors() as exc:
                raise self._unwritable() from exc
            if sent == 0:
                raise self._unwritable()
            view, stall = view[sent:], _Deadline(stall_s)

    def close_stdin(self) -> None:
        """Signal the end of input to the command. Harmless if it has already exited."""
        try:
            with speaking(self._channel):
                self._channel.shutdown_write()
        except paramiko_loader.errors():
            return

    def read(self, size: int = CHUNK_BYTES, *, deadline_s: float | None = None) -> bytes:
        """Return between 1 and `size` bytes of the output, or b"" at its end."""
        if self._buffer:
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            return piece
        return self._receive(size, _Deadline(deadline_s))

    def readline(self, limit: int = 1024 * 1024, *, deadline_s: float | None = None) -> bytes:
        """Return the next line with its line end, which is absent at the end of the output or after `limit` bytes."""
        deadline = _Deadline(deadline_s)
        searched = 0
        while (end := self._buffer.find(b"\n", searched, limit)) < 0 and len(self._buffer) < limit:
            searched = len(self._buffer)
            piece = self._receive(CHUNK_BYTES, deadline)
            if not piece:
                end = len(self._buffer) - 1
                break
            self._buffer += piece
        size = end + 1 if end >= 0 else min(limit, len(self._buffer))
        line = bytes(self._buffer[:size])
        del self._buffer[:size]
        return line

    def stderr_tail(self) -> bytes:
        """Return the last part of the command's standard error so far."""
        return self._stderr.kept()

    def wait(self, deadline_s: float | None = None) -> int:
        """Wait for the command to exit and return its exit code; 128 + N for signal N.

        Read the output to its end first: a command that fills the window never exits.
        """
        if not self._channel.status_event.wait(deadline_s):
            raise failures.overdue(self._label, self._where, self._what, deadline_s or 0)
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if _ended_by_peer(self._channel):
            return NO_STATUS
        raise self._lost()

    def finish(self, stdin: bytes, deadline_s: float | None) -> Completed:
        """Send all the input, read all the output, and wait for the exit, within the deadline."""
        output: list[bytes] = []
        errors = self._stderr

        def take(piece: bytes, is_error: bool) -> None:
            errors.add(piece) if is_error else output.append(piece)

        code = self.stream(take, stdin, deadline_s)
        return Completed(code, b"".join(output), errors.kept())

    def stream(self, take: Take, stdin: bytes = b"", deadline_s: float | None = None) -> int:
        """Like `finish`, but pass the output to `take` piece by piece, in this thread. Returns the exit code."""
        deadline = _Deadline(deadline_s)
        feeder = None
        if len(stdin) <= QUICK_STDIN_BYTES:
            self._feed(stdin, deadline)
        else:
            feeder = threading.Thread(target=self._feed, args=(stdin, deadline), daemon=True)
            feeder.start()
        self._pump(take, deadline)
        code = self.wait(deadline.left())
        if feeder is not None:
            self.close()  # a command that exited without reading its input leaves the feeder waiting
            feeder.join(deadline.left())
        return code

    def close(self) -> None:
        """Close our ends. A command that ignores this continues."""
        with contextlib.suppress(*paramiko_loader.errors()):  # the connection may have ended
            close_channel(self._channel)

    def __enter__(self) -> RemoteProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _feed(self, stdin: bytes, deadline: _Deadline) -> None:
        try:
            if stdin:
                self.write(stdin, deadline_s=deadline.left())
        except ClusterctlError:
            return  # the command need not read its input, and the reader gets any other error too
        self.close_stdin()

    def _pump(self, take: Take, deadline: _Deadline) -> None:
        """Pass on both streams until they end, in one thread, to save a second thread per command."""
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
            raise self._lost()

    def _received(self, receive: Callable[[int], bytes]) -> bytes:
        """Return the data that is available. Reading may widen the window, which needs the connection."""
        try:
            with speaking(self._channel):
                return receive(CHUNK_BYTES)
        except paramiko_loader.errors() as exc:
            raise self._lost() from exc

    def _receive(self, size: int, deadline: _Deadline) -> bytes:
        while True:
            try:
                with speaking(self._channel):
                    piece: bytes = self._channel.recv(size)
            except TimeoutError as exc:
                self._check(deadline, exc)
                continue
            except paramiko_loader.errors() as exc:
                raise self._lost() from exc
            if not piece and not self._channel.eof_received and not _ended_by_peer(self._channel):
                raise self._lost()
            return piece

    def _check(self, deadline: _Deadline, exc: TimeoutError) -> None:
        if deadline.passed:
            raise failures.overdue(self._label, self._where, self._what, deadline.seconds or 0) from exc

    def _unwritable(self) -> ClusterctlError:
        if _ended_by_peer(self._channel) or not self._channel.closed:
            return failures.input_closed(self._label, self._where, self._what)
        return self._lost()

    def _lost(self) -> ClusterctlError:
        return failures.lost(self._label, self._where, self._what)


class _Deadline:
    """A point in time, or no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


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


class _Tail:
    """The last bytes of a command's standard error."""

    def __init__(self, limit: int) -> None:
        self._kept = bytearray()
        self._limit = limit

    def kept(self) -> bytes:
        return bytes(self._kept[-self._limit :])

    def add(self, piece: bytes) -> None:
        self._kept += piece
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]


def _ended_by_peer(channel: Channel) -> bool:
    """Return True if the server closed the channel, and False if the connection ended instead."""
    return bool(getattr(channel, "ended_by_peer", False))


def start(
    connection: Connection, command: bytes, *, label: str, where: str, what: str, stderr_limit: int, drain_stderr: bool
) -> RemoteProcess:
    """Run a quoted command in a new channel of a connection. Raises UnreachableError or NodeError."""
    from clusterctl.transport.connection import run_in

    channel = None
    try:
        with translated(connection, label, where, what):
            channel = connection.open_session(timeout=OPEN_CHANNEL_S)
            process = RemoteProcess(
                channel, label=label, where=where, what=what, stderr_limit=stderr_limit, drain_stderr=drain_stderr
            )
            run_in(channel, command, OPEN_CHANNEL_S)
    except ClusterctlError:
        if channel is not None:
            with contextlib.suppress(*paramiko_loader.errors()):
                close_channel(channel)
        raise
    return process


@contextlib.contextmanager
def translated(connection: Connection, label: str, where: str, what: str) -> Iterator[None]:
    """Translate the errors of opening a channel and of starting a command in it: UnreachableError or NodeError."""
    from paramiko.ssh_exception import ChannelException

    try:
        yield
    except paramiko_loader.errors() as exc:
        if not connection.is_active():
            raise failures.lost(label, where, what) from exc
        reason = exc.text if isinstance(exc, ChannelException) else str(exc) or type(exc).__name__
        raise failures.no_channel(label, where, reason) from exc
