"""The socket to the supervisor: events out, commands in. This process exits when the supervisor is gone."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, Callable

from clusterctl.common.safe_json import parse
from clusterctl.runtime.errors import ProcessError

#: The exit status of a process whose supervisor is gone.
ORPHANED = 70

Command = dict[str, Any]  # such as {"cmd": "finish"}
_MAX_LINE_BYTES = 1 << 20
_STACKS = 4  # added to SIGRTMIN


class SupervisorSocket:
    """JSON lines over the control socket. Without one (local mode) events are dropped. `send` is thread-safe."""

    def __init__(self, fd: int | None, on_command: Callable[[Command], None] = lambda command: None) -> None:
        self._lock = threading.Lock()
        self._on_command = on_command
        self._socket: socket.socket | None = None
        if fd is None:
            return
        try:
            os.set_inheritable(fd, False)
            self._socket = socket.socket(fileno=fd)
        except OSError as exc:
            raise ProcessError(f"CLUSTERCTL_CONTROL_FD={fd} is not an open socket ({exc})") from exc
        self._socket.settimeout(None)
        threading.Thread(target=self._watch, name="clusterctl-control", daemon=True).start()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def send(self, event: str, **fields: Any) -> None:
        """Send one event. If the supervisor is gone, this or the watching thread ends the process."""
        if self._socket is None:
            return
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                os._exit(ORPHANED)

    def register_stack_dump(self) -> None:
        """Let a signal write the stacks of all threads to the log, and report its number to the supervisor.

        It is a real-time signal, which programs seldom use.
        """
        number = int(signal.SIGRTMIN) + _STACKS
        if self._socket is None or signal.getsignal(number) not in (signal.SIG_DFL, None):
            return
        faulthandler.register(number, file=2, all_threads=True)
        self.send("stacks", signal=number, pid=os.getpid())

    def _watch(self) -> None:
        pending = b""
        while True:
            try:
                data = self._socket.recv(65_536) if self._socket else b""
            except OSError:
                data = b""
            if not data:
                os._exit(ORPHANED)
            *lines, pending = (pending + data).split(b"\n")
            pending = pending[:_MAX_LINE_BYTES]
            for line in lines:
                self._command(line)

    def _command(self, line: bytes) -> None:
        try:
            command = parse(line)
        except ValueError:
            return
        if isinstance(command, dict):
            self._on_command(command)


def print_line(line: str) -> None:
    """Write a line for people to the output of the program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
