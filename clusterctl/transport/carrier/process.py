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
from clusterctl.transport.carrier.failures import CarrierExit, after_it_began
from clusterctl.transport.remote_process import CHUNK_BYTES, SLICE_S, Deadline, RemoteProcess, Take

SOON_S = 2.0  # a carrier whose pipes are closed may take so long to end by itself
TERM_S = 1.0
EXIT_POLL_S = 0.02
LAST_PIECES = 256  # of standard error, read once the carrier has exited
AHEAD_BYTES = 4 << 20  # of output, read while a command does not read its input; about as much as SSH takes


class CarrierProcess(RemoteProcess):
    """A command behind a carrier.

    Who waits for one of its pipes also reads the others, so that it never blocks on them; of two threads one does.
    Another thread may call `abort` and `close`: the pipes are closed once nobody uses them, since a file's number could
    soon be that of another one.
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
        self._input_ended = self._output_ended = self._errors_ended = False
        self._reading = threading.Lock()  # held by the thread that reads the outputs
        self._ahead = bytearray()  # of standard output
        self._take_errors: Callable[[bytes], None] = self._stderr.add
        self.on_close: Callable[[], None] = lambda: None
        self.on_leave: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def close_stdin(self) -> None:
        with self._lock:
            self._input_ended = True
            self._close_unused()

    def wait(self, deadline_s: float | None = None) -> int:
        deadline = Deadline(deadline_s)
        while self._popen.poll() is None:
            with self._using(), self._reading:
                if outputs := self._outputs():
                    self._take(self._poll(outputs, EXIT_POLL_S))
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._popen.wait(EXIT_POLL_S)
            self._check(deadline)
        return self._exit_code(self._popen.returncode)

    def close(self) -> None:
        if self._close():
            self.on_close()

    def leave(self) -> None:
        if self._close():
            self.on_leave()

    def _close(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._closed = self._input_ended = True
            self._close_unused()
            return True

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

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

    def unread(self) -> bytes:
        """Return the part of a line that has arrived, and stays to be read."""
        return bytes(self._buffer)

    def ending(self) -> CarrierExit:
        """Return how the carrier ended, or that it goes on: its exit code and its last words."""
        with self._reading:
            self._take_last_errors()
        return CarrierExit(self._carrier, self._host, self._popen.poll(), self.stderr_tail())

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
            reads = self._reading.acquire(blocking=False)
            try:
                if self._input_ended:
                    raise BrokenPipeError
                ready = self._poll({self._stdin: select.POLLOUT, **(self._outputs() if reads else {})}, SLICE_S)
                if reads:
                    self._take(ready)
                return os.write(self._stdin, view[:CHUNK_BYTES]) if self._stdin in ready else 0
            except BlockingIOError:
                return 0
            except BrokenPipeError as exc:
                raise failures.input_closed(self._label, self._where, self._what) from exc
            finally:
                if reads:
                    self._reading.release()

    def _receive(self, size: int) -> bytes | None:
        with self._using(), self._reading:
            if not self._ahead:
                self._take(self._poll(self._outputs(), 0 if self._output_ended else SLICE_S))
            if not self._ahead and not self._output_ended:
                return None
            piece = bytes(self._ahead[:size])
            del self._ahead[:size]
            if not piece and self._closed:
                raise self.lost()
            return piece

    def _pump(self, take: Take, deadline: Deadline) -> None:
        with self._reading:
            if early := self._stderr.take():
                take(early, True)
            self._take_errors = lambda piece: take(piece, True)
            self._ahead[:0], self._buffer = self._buffer, bytearray()
            while not (self._output_ended and (self._errors_ended or self._popen.poll() is not None)):
                with self._using():
                    self._take(self._poll(self._outputs(), EXIT_POLL_S if self._output_ended else SLICE_S))
                if self._ahead:
                    take(bytes(self._ahead), False)
                    self._ahead.clear()
                self._check(deadline)
            self._take_last_errors()
            self._take_errors = self._stderr.add

    def _outputs(self) -> dict[int, int]:
        """Return what to wait for: the outputs that have not ended, unless too much is read ahead."""
        wanted = {self._errors: not self._errors_ended}
        wanted[self._stdout] = not self._output_ended and len(self._ahead) < AHEAD_BYTES
        return {fd: select.POLLIN for fd, is_wanted in wanted.items() if is_wanted}

    @staticmethod
    def _poll(events: dict[int, int], timeout_s: float) -> set[int]:
        poller = select.poll()
        for fd, event in events.items():
            poller.register(fd, event)
        return {fd for fd, _ in poller.poll(timeout_s * 1000)}

    def _take(self, ready: set[int]) -> None:
        """Read from those outputs that are ready."""
        if self._stdout in ready:
            piece = os.read(self._stdout, CHUNK_BYTES)
            self._output_ended = not piece
            self._ahead += piece
        if self._errors in ready:
            piece = os.read(self._errors, CHUNK_BYTES)
            self._errors_ended = not piece
            if piece:
                self._take_errors(piece)

    def _take_last_errors(self) -> None:
        """Read what is left on standard error, which a process that was left behind may keep open."""
        with contextlib.suppress(ClusterctlError), self._using():
            for _ in range(LAST_PIECES):
                ready = set() if self._errors_ended else self._poll({self._errors: select.POLLIN}, 0)
                if not ready:
                    break
                self._take(ready)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the pipes open while in this context. Raises UnreachableError if the process is closed."""
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
        """Close the pipes that are not wanted any more, if nobody uses them. The lock is held."""
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
