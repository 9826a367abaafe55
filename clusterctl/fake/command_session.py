"""One command on a fake node: an SSH channel connected to a real process by pipes, as in sshd.

As in sshd, the command is not killed when its channel closes: its input ends and its output breaks. The channel stays
open as long as any process holds the other ends of the pipes, so a daemon has to close them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

READ_BYTES = 256 * 1024
PENDING_BYTES = 1024 * 1024
WRITE_AHEAD_BYTES = 512 * 1024
PIPE_BYTES = 256 * 1024
STOP_SELF = "kill -STOP $$\n"
STDERR = asyncssh.EXTENDED_DATA_STDERR


class Children:
    """Calls back when a child has exited, with one SIGCHLD handler for all children."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def watch(self, child: subprocess.Popen[bytes], ended: Callable[[], None]) -> None:
        self._waiting[child] = ended
        self._reap()  # it may already have exited

    def _reap(self) -> None:
        for child in [child for child in self._waiting if child.poll() is not None]:
            self._waiting.pop(child)()


@dataclass
class Outflow:
    """The flow from a pipe of the process to the channel, limited to the client's reading speed."""

    fd: int
    kind: int | None
    open: bool = True


@dataclass
class Inflow:
    """The flow from the channel to the standard input of the process, limited to the process's reading speed."""

    fd: int
    pending: bytearray = field(default_factory=bytearray)
    ended: bool = False
    open: bool = True
    paused: bool = False


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """Runs the command of one exec request with /bin/sh, in its own session."""

    def __init__(
        self, home: Path, environment: Mapping[str, str], children: Children, *, paused: Callable[[], bool]
    ) -> None:
        self._home = home
        self._environment = environment
        self._children = children
        self._paused = paused
        self._loop = asyncio.get_running_loop()
        self._chan: asyncssh.SSHServerChannel[bytes]
        self._child: subprocess.Popen[bytes] | None = None
        self._outflows: list[Outflow] = []
        self._inflow: Inflow | None = None
        self._writable = True
        self._ended = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan
        chan.set_write_buffer_limits(high=WRITE_AHEAD_BYTES)

    def exec_requested(self, command: str) -> bool:
        try:
            self._spawn(command)
        except OSError:
            return False
        return True

    def session_started(self) -> None:
        assert self._child is not None
        for flow in self._outflows:
            self._loop.add_reader(flow.fd, self._pump_out, flow)
        self._children.watch(self._child, self._child_ended)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        inflow = self._inflow
        if inflow is None or not inflow.open:
            return  # as in sshd, discard data that the command will never read
        inflow.pending += data
        self._pump_in()

    def eof_received(self) -> bool:
        if self._inflow is not None:
            self._inflow.ended = True
            self._pump_in()
        return True  # keep our direction open

    def signal_received(self, signal: str) -> None:
        number = _signal_number(signal)
        if self._child is not None and number is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def pause_writing(self) -> None:
        self._writable = False
        for flow in self._outflows:
            if flow.open:
                self._loop.remove_reader(flow.fd)

    def resume_writing(self) -> None:
        self._writable = True
        for flow in self._outflows:
            if flow.open:
                self._loop.add_reader(flow.fd, self._pump_out, flow)

    def connection_lost(self, exc: Exception | None) -> None:
        for flow in self._outflows:
            self._close_out(flow)
        self._close_in()

    def _spawn(self, command: str) -> None:
        """Start the command. On a paused node it is stopped from the start, until the node is healed."""
        paused = self._paused()
        with contextlib.ExitStack() as on_failure:
            pipes = [os.pipe() for _ in range(3)]
            for fd in (fd for pipe in pipes for fd in pipe):
                on_failure.callback(os.close, fd)
            (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr) = pipes
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", (STOP_SELF * paused + command).encode("utf-8", "surrogateescape")],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self._home,
                env=self._environment,
                start_new_session=True,
            )
            on_failure.pop_all()
        if paused:
            os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        for fd in (our_stdin, our_stdout, our_stderr):
            os.set_blocking(fd, False)
        _widen(our_stdin, our_stdout)
        self._inflow = Inflow(our_stdin)
        self._outflows = [Outflow(our_stdout, None), Outflow(our_stderr, STDERR)]

    def _pump_out(self, flow: Outflow) -> None:
        try:
            data = os.read(flow.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            with contextlib.suppress(OSError):  # the channel may be closing; `connection_lost` follows
                self._chan.write(data, flow.kind)
        else:
            self._close_out(flow)
            self._end_if_over()

    def _pump_in(self) -> None:
        inflow = self._inflow
        if inflow is None or not inflow.open:
            return
        try:
            while inflow.pending:
                del inflow.pending[: os.write(inflow.fd, inflow.pending)]
        except BlockingIOError:
            self._loop.add_writer(inflow.fd, self._pump_in)
        except OSError:
            self._close_in()
            return
        else:
            self._loop.remove_writer(inflow.fd)
            if inflow.ended:
                self._close_in()
        self._throttle(inflow)

    def _throttle(self, inflow: Inflow) -> None:
        if not inflow.paused and len(inflow.pending) > PENDING_BYTES:
            inflow.paused = True
            self._chan.pause_reading()
        elif inflow.paused and len(inflow.pending) < PENDING_BYTES // 2:
            inflow.paused = False
            self._chan.resume_reading()

    def _close_out(self, flow: Outflow) -> None:
        if flow.open:
            flow.open = False
            self._loop.remove_reader(flow.fd)
            os.close(flow.fd)

    def _close_in(self) -> None:
        inflow = self._inflow
        if inflow is not None and inflow.open:
            inflow.open = False
            inflow.pending.clear()
            self._loop.remove_writer(inflow.fd)
            os.close(inflow.fd)
            if inflow.paused:
                inflow.paused = False
                self._chan.resume_reading()

    def _child_ended(self) -> None:
        self._ended = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if not self._ended or any(flow.open for flow in self._outflows) or self._chan.is_closing():
            return
        assert self._child is not None
        code = self._child.returncode
        self._chan.write_eof()
        if code >= 0:
            self._chan.exit(code)
        else:
            self._chan.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))


def _signal_number(name: str) -> int | None:
    return getattr(signal, f"SIG{name}", None)


def _widen(*pipes: int) -> None:
    """Enlarge pipes, for fewer turns of the event loop. Ignore errors: the user's pipe quota may be exhausted."""
    operation = getattr(fcntl, "F_SETPIPE_SZ", None)
    if operation is not None:
        for fd in pipes:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, operation, PIPE_BYTES)
