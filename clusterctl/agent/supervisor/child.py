"""One process of a run on this node: starts it, captures its output, receives its messages and its exit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.messages import LastLines, ProcessName
from clusterctl.agent.node.log_files import LONGEST_LINE, READ_BYTES, LogWriter
from clusterctl.common.events import UsageEvent
from clusterctl.common.paths import expand_program, log_stem
from clusterctl.common.procfs import Identity, cpu_and_memory, identify, send_signal
from clusterctl.common.run_spec import ProcessSpec
from clusterctl.common.safe_json import parse_event


class CpuMeter:
    """The average use of the CPU over periods of at least `period_s`. `cores`, of the last period, is None before."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._began: tuple[float, float] | None = None  # time, and CPU seconds used until then
        self.cores: float | None = None

    def read(self, used_s: float, now: float) -> bool:
        """Take the CPU seconds used since the start of the process. Return True if a period ends; the first begins one.

        `now` is monotonic.
        """
        if self._began is None:
            self._began = (now, used_s)
            return False
        began, before_s = self._began
        if now - began < self._period_s:
            return False
        self.cores = (used_s - before_s) / (now - began)
        self._began = (now, used_s)
        return True


TAIL_LINES = 20
TAIL_BYTES = 4096
REMARK = "clusterctl: "  # begins the lines that a supervisor writes into a process's log
CPU_SHOWN_S = 0.5  # the shortest period for which clock ticks tell the use of the CPU
USAGE_EVERY_S = 10.0
READS_PER_TURN = 16  # of one pipe, before the others get their turn


class Child:
    """`on_message(child, message)` gets the messages on its control socket, `on_log_error` errors of its log."""

    def __init__(
        self,
        plan: ProcessSpec,
        loop: EventLoop,
        on_message: Callable[[Child, dict[str, Any]], None],
        on_log_error: Callable[[Child, OSError], None],
        attempt: int = 1,
    ) -> None:
        self.attempt = self.next_attempt = attempt
        self.worked = False
        self.pushes = 0
        self.pushed: bool | None = None
        self.losses: list[int] = []
        self.connected = False
        self.goodbye: str | None = None  # "done" if the pservers know that it left the run, "leaving" if not
        self.uncaught = ""  # the class of the exception that ends it
        self.stalled: str | None = None  # why the supervisor killed it
        self.fenced = False  # killed by the guardian: the lead had not answered for too long
        self.hopeless: str | None = None  # why a restart would fail, too
        self.peers: list[str] = []  # the processes that did not answer it
        self.role = plan.role
        self.rank = plan.rank
        self.plan = plan
        self.state = "waiting"
        self.exit_code: int | None = None
        self.identity: Identity | None = None
        self.progress: dict[str, Any] = {}
        self.started_t: float | None = None
        self._loop = loop
        self._on_message = on_message
        self._on_log_error = on_log_error
        self._popen: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._control_rest = b""
        self._output = -1
        self._log: LogWriter | None = None
        self._tail = b""
        self._printed: deque[str] = deque(maxlen=TAIL_LINES)
        self._shown_cpu = CpuMeter(CPU_SHOWN_S)
        self._recorded_cpu = CpuMeter(USAGE_EVERY_S)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def serves(self) -> bool:
        """True if it serves the trainers, and does not end on its own."""
        return self.role != "trainer"

    @property
    def alive(self) -> bool:
        return self._popen is not None and self.exit_code is None

    @property
    def pid(self) -> int | None:
        """Its pid until its exit is reaped, else None."""
        return self._popen.pid if self._popen is not None and self.exit_code is None else None

    def start(
        self,
        cwd: Path,
        log_dir: Path,
        make_env: Callable[[str], dict[str, str]],
        t: float,
        limit: Callable[[], None] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Start the command; raises OSError if that fails. `make_env` is called with the control descriptor.

        `limit` is called in the new process before it becomes the command's; `before` is a command that becomes it.
        """
        self._log = LogWriter(log_dir, log_stem(self.role, self.plan.index))
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [*before, expand_program(self.plan.argv[0]), *self.plan.argv[1:]],
                cwd=cwd,
                env=make_env(str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=limit,  # noqa: PLW1509 - the supervisor has one thread
            )
        except BaseException as exc:
            os.close(read_end)
            ours.close()
            if isinstance(exc, subprocess.SubprocessError):
                raise OSError(0, "its limits are too low for it to start") from exc
            raise
        finally:
            os.close(write_end)
            theirs.close()
        self.identity = identify(self._popen.pid)
        self.state, self.started_t = "starting", t
        self._recorded_cpu.read(0.0, self._loop.now())
        self._listen(ours, read_end)

    def _listen(self, control: socket.socket, output: int) -> None:
        control.setblocking(False)
        os.set_blocking(output, False)
        self._control, self._output = control, output
        self._loop.watch(control, self._receive)
        self._loop.watch(output, self._capture)

    def _receive(self, reads: int = 2) -> None:
        """Read the control socket, a limited number of times a turn. End of file only stops the reading."""
        assert self._control is not None
        for _ in range(reads):
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.unwatch(self._control)
                return
            self._understand(data)

    def _understand(self, data: bytes) -> None:
        *lines, self._control_rest = (self._control_rest + data).split(b"\n")
        if len(self._control_rest) > LONGEST_LINE * 16:
            self._control_rest = b""
        for line in lines:
            self._handle_line(line)

    def _handle_line(self, line: bytes) -> None:
        message = parse_event(line)
        if message is not None:
            self._on_message(self, message)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message on the control socket. A process that does not read it misses it."""
        if self._control is not None and self.alive:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps(message).encode() + b"\n")

    def _capture(self) -> None:
        """Read the output, at most some megabytes: more than a pipe holds, but not so much that others starve."""
        for _ in range(READS_PER_TURN):
            try:
                data = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_output()
                return
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as exc:
                self._log = None
                self._on_log_error(self, exc)

    def remark(self, text: str) -> None:
        """Write a line of clusterctl into its log."""
        begin = b"" if not self._tail or self._tail.endswith(b"\n") else b"\n"
        self.printed(f"{REMARK}{text}")
        self._keep(begin + f"{REMARK}{text}\n".encode())

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.unwatch(self._output)
            os.close(self._output)
            self._output = -1

    def printed(self, line: str) -> None:
        """Record that a line of its log is clusterctl's, not the program's."""
        self._printed.append(line)

    def tail(self) -> list[str]:
        """The last lines of its output."""
        return self._tail.decode(errors="replace").splitlines()[-TAIL_LINES:]

    def last_lines(self) -> LastLines:
        """The last lines of its output, for events and messages."""
        tail = self.tail()
        return {"tail": tail, "ours": [at for at, line in enumerate(tail) if line in self._printed]}

    def poll(self) -> bool:
        """Return True if it has ended since the last call. All its output is in the log then."""
        if not self.alive or self._popen is None or self._popen.poll() is None:
            return False
        self.exit_code = self._popen.returncode
        if self._output >= 0:
            self._capture()
        if self._control is not None:
            self._receive(READS_PER_TURN)
            self._loop.unwatch(self._control)
            self._control.close()
            self._control = None
        return True

    def signal(self, number: int) -> None:
        """Signal its process group. Stopped processes are resumed, so that they get the signal."""
        if self.alive and self.identity is not None:
            try:
                os.killpg(self.identity.pid, number)
                os.killpg(self.identity.pid, signal.SIGCONT)
            except ProcessLookupError:
                send_signal(self.identity, number)
            except PermissionError:
                pass

    def close(self) -> None:
        """Read the rest of the pipe and close it."""
        if self._output >= 0:
            self._capture()
        self._close_output()
        if self._log is not None:
            self._log.close()

    def lived_s(self, t: float) -> float:
        """Seconds since its start; `t` is the time of day."""
        return t - self.started_t if self.started_t is not None else 0.0

    def snapshot(self, now: float) -> dict[str, Any]:
        """The facts that `status` shows."""
        return {
            "role": self.role,
            "rank": self.rank,
            "state": self.state,
            "pid": self.identity.pid if self.identity else None,
            "identity": self.identity,
            "index": self.plan.index,
            "restarts": self.attempt - 1,
            "exit_code": self.exit_code,
            "started": self.started_t,
            **self.progress,
            **self._usage(now),
        }

    def _usage(self, now: float) -> dict[str, Any]:
        """CPU since the last call, in cores, and resident bytes."""
        used = self._used()
        if used is None:
            return {"cpu": None, "memory": None}
        self._shown_cpu.read(used[0], now)
        return {"cpu": self._shown_cpu.cores, "memory": used[1]}

    def usage_event(self, now: float) -> UsageEvent | None:
        """Return the event that is due every USAGE_EVERY_S from its start on while it is alive, else None."""
        used = self._used()
        if used is None or not self._recorded_cpu.read(used[0], now):
            return None
        return {"event": "usage", "cpu": round(self._recorded_cpu.cores or 0.0, 4), "memory": used[1]}

    def _used(self) -> tuple[float, int] | None:
        return cpu_and_memory(self.identity.pid) if self.alive and self.identity else None


def process_of(child: Child) -> ProcessName:
    """The name and the attempt of a process, for messages about it."""
    return {"role": child.role, "rank": child.rank, "attempt": child.attempt}
