"""A running command behind a carrier, which is a process of this machine with three pipes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import IO

from clusterctl.errors import ClusterctlError
from clusterctl.transport import failures
from clusterctl.transport.carrier.failures import Ending, after_it_began
from clusterctl.transport.remote_process import CHUNK_BYTES, SLICE_S, Deadline, RemoteProcess, Take

SOON_S = 2.0  # a carrier whose pipes are closed may take so long to end by itself
TERM_S = 1.0
EXIT_POLL_S = 0.02
LAST_PIECES = 256  # of standard error, read once the carrier has exited


class CarrierProcess(RemoteProcess):
    """A command behind a carrier.

    Whoever waits for one of its pipes also reads its standard error, so that it never blocks on it. Another thread
    may call `abort` and `close`: the pipes are closed once nobody uses them.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        *,
        carrier: str,
        host: str,
        label: str,
        where: str,
        what: str,
        stderr_limit: int,
    ) -> None:
        super().__init__(label=label, where=where, what=what, stderr_limit=stderr_limit)
        self._popen, self._carrier, self._host = popen, carrier, host
        self._stdin, self._stdout, self._errors = (_end(pipe) for pipe in (popen.stdin, popen.stdout, popen.stderr))
        self._lock = threading.Lock()
        self._users = 0
        self._closed = self._input_ended = self._errors_ended = self._pumping = False
        self.on_close: Callable[[], None] = lambda: None

    def close_stdin(self) -> None:
        with self._lock:
            self._input_ended = True
            self._close_unused()

    def wait(self, deadline_s: float | None = None) -> int:
        deadline = Deadline(deadline_s)
        while self._popen.poll() is None:
            with self._using():
                if self._errors_ended:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._popen.wait(SLICE_S)
                elif self._await(None, 0, EXIT_POLL_S):
                    self._take_errors()
            self._check(deadline)
        return self._exit_code(self._popen.returncode)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = self._input_ended = True
            self._close_unused()
        self.on_close()

    def abort(self) -> None:
        """End the carrier now. Every call that waits for it raises UnreachableError.

        One that is closed has done its work, and gets its time to end by itself.
        """
        if not self._closed:
            self.close()
            self._signal(signal.SIGTERM)

    def end(self, patience_s: float = SOON_S) -> None:
        """Wait until the carrier has ended by itself, else kill its group. It is reaped in any case."""
        for number, wait_s in ((0, patience_s), (signal.SIGTERM, TERM_S), (signal.SIGKILL, None)):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(wait_s)
                break
        if number:
            with contextlib.suppress(OSError):  # what is left of its group
                os.killpg(self._popen.pid, signal.SIGKILL)

    def ending(self) -> Ending:
        """Return how the carrier ended, or that it goes on: its exit code and its last words."""
        with contextlib.suppress(ClusterctlError), self._using():
            for _ in range(LAST_PIECES):
                if not self._take_errors():
                    break
        return Ending(self._carrier, self._host, self._popen.poll(), self.stderr_tail())

    def _signal(self, number: int) -> None:
        if number and self._popen.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._popen.pid, number)

    def _exit_code(self, code: int) -> int:
        """Return the exit code of the command. A carrier that a signal ended has not waited for the command."""
        if self._closed or (code < 0 and self._carrier != "local"):
            raise self.lost()
        if code < 0:
            return 128 - code
        error = after_it_began(self.ending(), self._label)
        if error is not None and code:
            raise error
        return code

    def _send(self, view: memoryview) -> int:
        with self._using():
            try:
                if self._input_ended:
                    raise BrokenPipeError
                if self._await(self._stdin, select.POLLOUT, SLICE_S):
                    return os.write(self._stdin, view[:CHUNK_BYTES])
            except BlockingIOError:
                return 0
            except BrokenPipeError as exc:
                raise failures.input_closed(self._label, self._where, self._what) from exc
            return 0

    def _receive(self, size: int) -> bytes | None:
        with self._using():
            piece = os.read(self._stdout, size) if self._await(self._stdout, select.POLLIN, SLICE_S) else None
            if piece == b"" and self._closed:
                raise self.lost()
            return piece

    def _await(self, fd: int | None, event: int, timeout_s: float) -> bool:
        """Wait for one of the pipes. Take what arrives on standard error meanwhile, unless `_pump` does.

        Without `fd`, wait for standard error itself.
        """
        poller = select.poll()
        if fd is not None:
            poller.register(fd, event)
        watched = not self._errors_ended and not self._pumping
        if watched:
            poller.register(self._errors, select.POLLIN)
        ready = dict(poller.poll(timeout_s * 1000))
        if fd is None:
            return self._errors in ready
        if watched and self._errors in ready:
            self._take_errors()
        return fd in ready

    def _take_errors(self) -> bytes:
        """Read a piece of standard error and keep it; b"" if there is none."""
        with self._lock:
            try:
                piece = os.read(self._errors, CHUNK_BYTES)
            except BlockingIOError:
                return b""
            self._errors_ended = not piece
            self._stderr.add(piece)
        return piece

    def _pump(self, take: Take, deadline: Deadline) -> None:
        self._pumping = True
        if self._buffer:  # read together with the line before it
            take(bytes(self._buffer), False)
            self._buffer.clear()
        if early := self._stderr.take():
            take(early, True)
        output_ended = False
        while not (output_ended and (self._errors_ended or self._popen.poll() is not None)):
            with self._using():
                poller = select.poll()
                for fd, ended in ((self._stdout, output_ended), (self._errors, self._errors_ended)):
                    if not ended:
                        poller.register(fd, select.POLLIN)
                ready = dict(poller.poll(1000 * (EXIT_POLL_S if output_ended else SLICE_S)))
                if self._stdout in ready:
                    piece = os.read(self._stdout, CHUNK_BYTES)
                    output_ended = not piece
                    if piece:
                        take(piece, False)
                if self._errors in ready:
                    self._pass_errors(take)
            self._check(deadline)
        with self._using():
            for _ in range(LAST_PIECES):
                if not self._pass_errors(take):
                    break
        self._pumping = False

    def _pass_errors(self, take: Take) -> bool:
        try:
            piece = os.read(self._errors, CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._errors_ended = not piece
        if piece:
            take(piece, True)
        return bool(piece)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the pipes open while a thread waits for one of them: its number could soon be that of another file."""
        with self._lock:
            if self._closed:
                raise self.lost()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._close_unused()

    def _close_unused(self) -> None:
        if self._users:
            return
        pipes = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        for pipe in pipes if self._closed else pipes[:1] if self._input_ended else ():
            if pipe is not None:
                pipe.close()


def _end(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
