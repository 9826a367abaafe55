"""A command that runs on a node, with its three streams and its end."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import NamedTuple

from paramiko.channel import Channel
from paramiko.ssh_exception import ChannelException, SSHException

from clusterctl.errors import ClusterctlError
from clusterctl.transport import failures
from clusterctl.transport.link import Link, ended_by_peer

OPEN_CHANNEL_S = 15.0
CHUNK_BYTES = 256 * 1024
STDERR_TAIL_BYTES = 64 * 1024
NO_STATUS = 255  # as ssh has it, when a server ends a command without saying how
SLICE_S = 0.2  # paramiko has one timeout for both directions: short waits, and our own deadlines
QUICK_STDIN_BYTES = 16 * 1024


class Completed(NamedTuple):
    """How a command ended. `exit_code` is 128 + the signal's number for one that died of a signal."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class RemoteProcess:
    """A command on a node while it runs.

    One thread may write while another reads. stderr is always drained, so that neither side blocks for it;
    its last `stderr_limit` bytes are kept. Closing ends our streams, not the command: as with `ssh`, it sees
    the end of its input and a broken pipe. Every method raises UnreachableError when
    the connection is lost, and NodeError when its deadline has passed.
    """

    def __init__(
        self, channel: Channel, *, label: str, where: str, what: str, stderr_limit: int = STDERR_TAIL_BYTES
    ) -> None:
        self._channel = channel
        channel.settimeout(SLICE_S)
        self._label, self._where, self._what = label, where, what
        self._buffer = bytearray()
        self._stderr = _Tail(channel, stderr_limit)

    def write(self, data: bytes | bytearray | memoryview, *, deadline_s: float | None = None) -> None:
        """Send all of it to the command's input, waiting for as long as the command does not read.

        Raises NodeError with details["reason"] "input_closed" when the command has ended.
        """
        view = memoryview(data).cast("B")
        deadline = _Deadline(deadline_s)
        while view:
            try:
                sent = self._channel.send(bytes(view[: self._channel.out_max_packet_size]))
            except TimeoutError as exc:
                self._check(deadline, exc)
                continue
            except (OSError, EOFError, SSHException) as exc:
                raise self._unwritable() from exc
            if sent == 0:
                raise self._unwritable()
            view = view[sent:]

    def close_stdin(self) -> None:
        """Tell the command that its input ends here. Harmless when it has ended already."""
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, SSHException):
            return

    def read(self, size: int = CHUNK_BYTES, *, deadline_s: float | None = None) -> bytes:
        """At least one and at most `size` bytes of the output; empty at its end."""
        if self._buffer:
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            return piece
        return self._receive(size, _Deadline(deadline_s))

    def readline(self, limit: int = 1024 * 1024, *, deadline_s: float | None = None) -> bytes:
        """The next line of the output with its line end; without it at the end of output or after `limit`."""
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
        """The last part of what the command has written to its standard error so far."""
        return self._stderr.kept()

    def wait(self, deadline_s: float | None = None) -> int:
        """The exit code, once the command has ended; 128 + N for signal N.

        Does not read the output: read it to its end first, or a command that fills the window never ends.
        """
        if not self._channel.status_event.wait(deadline_s):
            raise failures.overdue(self._label, self._where, self._what, deadline_s or 0)
        if self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        if ended_by_peer(self._channel):
            return NO_STATUS
        raise self._lost()

    def finish(self, stdin: bytes, deadline_s: float | None) -> Completed:
        """Send all the input, take all the output, and wait for the end, within the deadline."""
        deadline = _Deadline(deadline_s)
        feeder = None
        if len(stdin) <= QUICK_STDIN_BYTES:
            self._feed(stdin, deadline)
        else:
            feeder = threading.Thread(target=self._feed, args=(stdin, deadline), daemon=True)
            feeder.start()
        output: list[bytes] = []
        while piece := self._receive(CHUNK_BYTES, deadline):
            output.append(piece)
        code = self.wait(deadline.left())
        self._stderr.join(deadline.left())
        if feeder is not None:
            self.close()  # a command that ended without reading its input leaves the feeder waiting
            feeder.join(deadline.left())
        return Completed(code, b"".join(output), self._stderr.kept())

    def close(self) -> None:
        """Close our ends. The command itself goes on if it ignores that."""
        self._channel.close()

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
            return  # it need not read its input; whatever else is wrong, the reader meets it too
        self.close_stdin()

    def _receive(self, size: int, deadline: _Deadline) -> bytes:
        while True:
            try:
                piece: bytes = self._channel.recv(size)
            except TimeoutError as exc:
                self._check(deadline, exc)
                continue
            if not piece and not self._channel.eof_received and not ended_by_peer(self._channel):
                raise self._lost()
            return piece

    def _check(self, deadline: _Deadline, exc: TimeoutError) -> None:
        if deadline.passed:
            raise failures.overdue(self._label, self._where, self._what, deadline.seconds or 0) from exc

    def _unwritable(self) -> ClusterctlError:
        if ended_by_peer(self._channel) or not self._channel.closed:
            return failures.input_closed(self._label, self._where, self._what)
        return self._lost()

    def _lost(self) -> ClusterctlError:
        return failures.lost(self._label, self._where, self._what)


class _Deadline:
    """A point in time, or none."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


class _Tail:
    """Drains a channel's standard error in a thread of its own and keeps the last bytes."""

    def __init__(self, channel: Channel, limit: int) -> None:
        self._kept = bytearray()
        self._limit = limit
        self._channel = channel
        self._thread = threading.Thread(target=self._drain, daemon=True, name="stderr")
        self._thread.start()

    def kept(self) -> bytes:
        return bytes(self._kept[-self._limit :])

    def join(self, timeout_s: float | None) -> None:
        self._thread.join(timeout_s)

    def _drain(self) -> None:
        try:
            while True:
                try:
                    piece = self._channel.recv_stderr(CHUNK_BYTES)
                except TimeoutError:
                    continue
                if not piece:
                    return
                self._kept += piece
                if len(self._kept) > 2 * self._limit:
                    del self._kept[: -self._limit]
        except (OSError, EOFError, SSHException):
            return


def start(link: Link, command: bytes, *, label: str, where: str, what: str, stderr_limit: int) -> RemoteProcess:
    """Run a quoted command in a new channel of a link. Raises UnreachableError or NodeError."""
    try:
        channel = link.open_session(timeout=OPEN_CHANNEL_S)
        channel.settimeout(OPEN_CHANNEL_S)
        channel.exec_command(command)
    except ChannelException as exc:
        raise failures.no_channel(label, where, exc.text) from exc
    except (OSError, EOFError, SSHException) as exc:
        if link.is_active():
            raise failures.no_channel(label, where, str(exc) or type(exc).__name__) from exc
        raise failures.lost(label, where, what) from exc
    return RemoteProcess(channel, label=label, where=where, what=what, stderr_limit=stderr_limit)
