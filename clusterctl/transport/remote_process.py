"""A running command on a node, over any carrier: its three streams and its exit."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from clusterctl.errors import ClusterctlError, UnreachableError
from clusterctl.transport import failures

CHUNK_BYTES = 256 * 1024
STDERR_TAIL_BYTES = 64 * 1024
SLICE_S = 0.2  # every wait is cut into slices, after each of which its deadlines are checked
QUICK_STDIN_BYTES = 16 * 1024
# Receives a piece of output as it arrives, and True if it was written to standard error.
Take = Callable[[bytes, bool], None]


class Completed(NamedTuple):
    """The result of a command. `exit_code` is 128 + the signal's number if a signal killed it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class RemoteProcess(ABC):
    """A running command on a node.

    One thread may write while another reads. The last `stderr_limit` bytes of standard error are kept. Closing ends
    our streams, not the command: as with `ssh`, it sees the end of its input and a broken pipe. Every method raises
    UnreachableError if the connection is lost, and NodeError after its deadline.
    """

    def __init__(self, *, label: str, where: str, what: str, stderr_limit: int) -> None:
        self._label, self._where, self._what = label, where, what
        self._buffer = bytearray()
        self._stderr = Tail(stderr_limit)

    def write(
        self, data: bytes | bytearray | memoryview, *, deadline_s: float | None = None, stall_s: float | None = None
    ) -> None:
        """Send all of `data` to the command's input, blocking while the command does not read.

        `deadline_s` limits the whole write, `stall_s` the time without progress. Raises NodeError with
        details["reason"] "input_closed" if the command has exited.
        """
        view = memoryview(data).cast("B")
        deadline, stall = Deadline(deadline_s), Deadline(stall_s)
        while view:
            sent = self._send(view)
            if sent:
                view, stall = view[sent:], Deadline(stall_s)
            else:
                self._check(deadline)
                self._check(stall)

    @abstractmethod
    def close_stdin(self) -> None:
        """Signal the end of input to the command. Harmless if it has already exited."""

    def read(self, size: int = CHUNK_BYTES, *, deadline_s: float | None = None) -> bytes:
        """Return between 1 and `size` bytes of the output, or b"" at its end."""
        if self._buffer:
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            return piece
        return self._read(size, Deadline(deadline_s))

    def readline(self, limit: int = 1024 * 1024, *, deadline_s: float | None = None) -> bytes:
        """Return the next line with its line end, which is absent at the end of the output or after `limit` bytes."""
        deadline = Deadline(deadline_s)
        searched = 0
        while (end := self._buffer.find(b"\n", searched, limit)) < 0 and len(self._buffer) < limit:
            searched = len(self._buffer)
            piece = self._read(CHUNK_BYTES, deadline)
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

    @abstractmethod
    def wait(self, deadline_s: float | None = None) -> int:
        """Wait for the command to exit and return its exit code; 128 + N for signal N.

        Read the output to its end first: a command that fills the window never exits.
        """

    def finish(self, stdin: bytes, deadline_s: float | None) -> Completed:
        """Send all the input, read all the output, and wait for the exit, within the deadline."""
        output: list[bytes] = []

        def take(piece: bytes, is_error: bool) -> None:
            if not is_error:
                output.append(piece)

        code = self.stream(take, stdin, deadline_s)
        return Completed(code, b"".join(output), self._stderr.kept())

    def stream(self, take: Take, stdin: bytes = b"", deadline_s: float | None = None) -> int:
        """Like `finish`, but pass the output to `take` piece by piece, in this thread. Returns the exit code."""

        def kept(piece: bytes, is_error: bool) -> None:
            if is_error:
                self._stderr.add(piece)
            take(piece, is_error)

        deadline = Deadline(deadline_s)
        feeder = None
        if len(stdin) <= QUICK_STDIN_BYTES:
            self._feed(stdin, deadline)
        else:
            feeder = threading.Thread(target=self._feed, args=(stdin, deadline), daemon=True)
            feeder.start()
        self._pump(kept, deadline)
        code = self.wait(deadline.left())
        if feeder is not None:
            self.close()  # a command that exited without reading its input leaves the feeder waiting
            feeder.join(deadline.left())
        return code

    @abstractmethod
    def close(self) -> None:
        """Close our ends. A command that ignores this continues."""

    def leave(self) -> None:
        """Close our ends, and let what carries the command live as long as the command, even after this program."""
        self.close()

    def lost(self) -> UnreachableError:
        """Return the error for a connection that was lost, also one that pretended a good end."""
        return failures.lost(self._label, self._where, self._what)

    def __enter__(self) -> RemoteProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _send(self, view: memoryview) -> int:
        """Send a part of `view`. Return the number of bytes sent, 0 if none could be within a slice."""

    @abstractmethod
    def _receive(self, size: int) -> bytes | None:
        """Return at most `size` bytes of the output, b"" at its end, None if none arrived within a slice."""

    @abstractmethod
    def _pump(self, take: Take, deadline: Deadline) -> None:
        """Pass on both streams until they end, in one thread, to save a second thread per command."""

    def _feed(self, stdin: bytes, deadline: Deadline) -> None:
        try:
            if stdin:
                self.write(stdin, deadline_s=deadline.left())
        except ClusterctlError:
            return  # the command need not read its input, and the reader gets any other error too
        self.close_stdin()

    def _read(self, size: int, deadline: Deadline) -> bytes:
        while (piece := self._receive(size)) is None:
            self._check(deadline)
        return piece

    def _check(self, deadline: Deadline) -> None:
        if deadline.passed:
            raise failures.overdue(self._label, self._where, self._what, deadline.seconds or 0)


class Deadline:
    """A point in time, or no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


class Tail:
    """The last bytes of a command's standard error."""

    def __init__(self, limit: int) -> None:
        self._kept = bytearray()
        self._limit = limit

    def kept(self) -> bytes:
        return bytes(self._kept[-self._limit :])

    def take(self) -> bytes:
        """Return them and forget them."""
        kept = self.kept()
        self._kept.clear()
        return kept

    def add(self, piece: bytes) -> None:
        self._kept += piece
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]
