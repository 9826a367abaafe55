"""Runners of commands: fabric's over a borrowed connection, with quoted variables and with ends to every wait."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fabric
import invoke

from clusterctl.errors import NodeError, UsageError
from clusterctl.transport import paramiko_loader
from clusterctl.transport.channels import close_channel, speaking
from clusterctl.transport.command import login_shell_argument

CHUNK_BYTES = 32 * 1024
SLICE_S = 0.5
NO_STATUS = 255  # as in ssh, if the server does not report how a command ended
TITLE_CHARS = 80
MOST_BYTES = 64 << 20  # of each stream, which is kept in memory
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exported(variables: Mapping[str, object]) -> str:
    """Return shell text that exports variables; `command` may follow it. Raises UsageError for an invalid name."""
    for name in variables:
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid environment variable name")
    words = (f"{name}={login_shell_argument(str(value))}" for name, value in sorted(variables.items()))
    return f"export {' '.join(words)} && "


def titled(command: str) -> str:
    """Return a command as it is shown in messages: one line, shortened."""
    line = " ".join(command.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…"


def of_this_thread(streams: Mapping[str, Any]) -> dict[str, Any]:
    """Return the streams of a command. One that differs between threads is replaced by that of the calling thread.

    A command's output is written by other threads.
    """
    return {name: getattr(stream, "of_this_thread", lambda stream=stream: stream)() for name, stream in streams.items()}


class Remote(fabric.Remote):  # type: ignore[misc]
    """Runs a command on a node. `context` is a `Connection` of ours.

    fabric's does not quote the values of `env`, waits for the server without a limit, polls every 10 ms, and closes
    channels in an order that makes some servers drop the connection, which is not ours alone.
    """

    read_chunk_size = CHUNK_BYTES
    streams: dict[str, Any]
    _is_endless = False

    def _unify_kwargs_with_config(self, kwargs: Any) -> None:
        super()._unify_kwargs_with_config(kwargs)
        self.streams = of_this_thread(self.streams)

    def start(self, command: str, shell: str, env: dict[str, Any], timeout: float | None = None) -> None:
        self._title = titled(command)
        self.context.open()
        self._link = self.context.link  # the connection may be given back before the command ends
        if env and self.inline_env:
            command, env = exported(env) + command, {}
        with self._link.translated(self._title):
            super().start(command, shell, env, timeout)
        if not (self.streams["in"] or self.watchers or self.using_pty):
            self.close_proc_stdin()

    def send_start_message(self, command: str) -> None:
        self._link.start(self.channel, command)

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        return self._read(self.channel.recv, num_bytes)

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        return self._read(self.channel.recv_stderr, num_bytes)

    def _read(self, receive: Callable[[int], bytes], num_bytes: int) -> bytes:
        try:
            with speaking(self.channel):
                return receive(num_bytes)
        except paramiko_loader.errors():  # `returncode` reports the loss of the connection
            return b""

    def read_proc_output(self, reader: Callable[[int], bytes]) -> Iterator[str]:
        """Yield the output as text. invoke decodes each piece by itself, and so breaks characters between two."""
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        taken = 0
        while piece := reader(self.read_chunk_size):
            taken += len(piece)
            if taken > MOST_BYTES:
                self._is_endless = True
                self.kill()
                return
            if text := decoder.decode(piece):
                yield text
        if text := decoder.decode(b"", True):
            yield text

    def respond(self, buffer_: list[str]) -> None:
        if self.watchers:  # it joins all the output so far
            super().respond(buffer_)

    def _write_proc_stdin(self, data: bytes) -> None:
        with speaking(self.channel):
            self.channel.sendall(data)

    def close_proc_stdin(self) -> None:
        with speaking(self.channel):
            self.channel.shutdown_write()

    def wait(self) -> None:
        while not (self.channel.status_event.wait(SLICE_S) or self.has_dead_threads):
            pass

    def returncode(self) -> int:
        """Return the exit code; 128 + N for signal N.

        Raises NodeError for too much output, and UnreachableError if the connection was lost.
        """
        if self._is_endless:
            raise NodeError(
                f"more than {MOST_BYTES >> 20} MiB of output: {self._title}",
                node=self.context.node.label,
                hint="let it write to a file on the node, and get that",
            )
        if self.channel.exit_status >= 0:
            return int(self.channel.exit_status)
        if self._is_overdue or getattr(self.channel, "ended_by_peer", False):
            return NO_STATUS
        raise self._link.lost(self._title)

    @property
    def _is_overdue(self) -> bool:
        return self.opts["timeout"] is not None and bool(self.timed_out)

    def send_interrupt(self, interrupt: KeyboardInterrupt) -> None:
        if not self.using_pty:
            self.kill()  # ends the threads that read
        super().send_interrupt(interrupt)

    def kill(self) -> None:
        close_channel(self.channel)

    def stop(self) -> None:
        if hasattr(self, "channel"):
            close_channel(self.channel)  # before paramiko's own way
        super().stop()


class Local(invoke.Local):
    """Runs a command on this machine. Ctrl-C ends it; invoke would wait for it."""

    def _unify_kwargs_with_config(self, kwargs: Any) -> None:
        super()._unify_kwargs_with_config(kwargs)
        self.streams = of_this_thread(self.streams)

    def send_interrupt(self, interrupt: KeyboardInterrupt) -> None:
        self.kill()
        raise interrupt
