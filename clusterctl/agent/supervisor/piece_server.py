"""The supervisor's side of its piece server: the port, the process while it is needed, and its answers."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from typing import TypedDict

from clusterctl.agent.lead.saving.messages import CopiedReport, CopySaveOrder, MergeModelOrder
from clusterctl.agent.node.pieces import remove_unfinished
from clusterctl.agent.node.ports import take_top
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.paths import ENTRY
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import Count, NotRequired, reader

READ_BYTES = 1 << 16
LONGEST = 1 << 16  # of an answer
RETRY_S = 1.0
END_S = 5.0


class CarriedOut(TypedDict):
    """The part of an answer of the piece server that its supervisor reads, see `replication/process.py`."""

    error: str | None
    bytes: NotRequired[Count]


class PieceServerProcess:
    """The port is open from the beginning; the process starts with the first connection or order."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        spec = context.spec
        has_peers = spec.trains_with_ours and len(spec.members) > 1
        self._listener = take_top(spec.address, spec.ports.port) if has_peers else None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._buffer = b""
        self._asked: list[CopySaveOrder | MergeModelOrder] = []
        self._has_died = False  # since its last answer
        self._await_peer()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def port(self) -> int | None:
        return self._listener.getsockname()[1] if self._listener is not None else None

    def _await_peer(self) -> None:
        if self._listener is not None and self._process is None:
            self._context.loop.watch(self._listener, self._welcome)

    def _welcome(self) -> None:
        """Start the process for a peer that has connected. If that fails, the peer waits, and we try again soon."""
        try:
            self._start()
        except OSError:
            self._pause()

    def _pause(self) -> None:
        """Do not start a process that fails at once again and again."""
        self._context.loop.unwatch(self._listener)
        self._context.loop.after(RETRY_S, self._await_peer)

    def carry_out(self, order: CopySaveOrder | MergeModelOrder) -> None:
        """Pass on an order of the lead. The report follows when it is done."""
        self._asked.append(order)
        try:
            if self._process is None:
                self._start()
        except OSError as exc:
            self._settle({"error": f"the piece server cannot be started: {exc.strerror}"})
            return
        assert self._control is not None
        assert self._process is not None
        try:
            self._control.sendall(json.dumps(order).encode() + b"\n")
        except OSError:  # it has just died: see `poll`
            self._process.kill()

    def _start(self) -> None:
        context = self._context
        ours, theirs = socket.socketpair()
        listener = self._listener.fileno() if self._listener is not None else -1
        numbers = [str(listener), str(theirs.fileno())]
        command = [
            sys.executable,
            "-I",
            "-S",
            ENTRY,
            "piece-server",
            str(context.run.job.dir),
            context.run.run,
            *numbers,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (listener, theirs.fileno()) if fd >= 0],
                cwd="/",
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._listener is not None:
            context.loop.unwatch(self._listener)
        self._control = ours
        context.loop.watch(ours, self._receive)

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._context.loop.unwatch(self._control)
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        try:
            answers = [reader(CarriedOut)(parse(line, LONGEST)) for line in lines]
        except ValueError:
            answers = []
        if len(answers) < len(lines) or len(self._buffer) > LONGEST:  # it is not itself: see `poll`
            self._context.loop.unwatch(self._control)
            if self._process is not None:
                self._process.kill()
        for answer in answers:
            self._has_died = False
            self._settle(answer)

    def _settle(self, answer: CarriedOut) -> None:
        """Report on the oldest order, which this answer is for."""
        order = self._asked.pop(0)
        report: CopiedReport = {
            "do": "copied",
            "tag": order["tag"],
            "of": order["do"],
            "bytes": answer.get("bytes", 0),
        }
        if answer["error"] is not None:
            report["message"] = answer["error"]
        self._context.send(report)

    def poll(self) -> None:
        """Handle the death of the process: another one gets its orders. If that dies, too, they have failed."""
        if self._process is None or self._process.poll() is None:
            return
        self._forget()
        has_died, self._has_died = self._has_died, bool(self._asked)
        if self._asked and not has_died:
            asked, self._asked = self._asked, []
            for order in asked:
                self.carry_out(order)
            if self._process is not None:
                return
        while self._asked:
            self._settle({"error": "the piece server ended unexpectedly"})
        self._pause()

    def _forget(self) -> None:
        assert self._control is not None
        self._context.loop.unwatch(self._control)
        self._control.close()
        self._process, self._control, self._buffer = None, None, b""

    def close(self) -> None:
        """End the process and free the port."""
        if self._listener is not None:
            self._context.loop.unwatch(self._listener)
            self._listener.close()
            self._listener = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk or a network file system
                self._process.wait(timeout=END_S)
            self._forget()
        remove_unfinished(self._context.run)
