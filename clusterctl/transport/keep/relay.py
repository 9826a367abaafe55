"""Passes the streams of a command on a node between its SSH channel and the socket of the command that wants it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.common.safe_json import parse
from clusterctl.errors import ClusterctlError
from clusterctl.transport import paramiko_loader
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel, speaking
from clusterctl.transport.keep import frames
from clusterctl.transport.keep.frames import Frames
from clusterctl.transport.keep.values import error_to_json
from clusterctl.transport.remote_process import CHUNK_BYTES, SLICE_S

if TYPE_CHECKING:
    from paramiko.channel import Channel

NO_STATUS = 255  # as in ssh, if the server does not report how a command ended


class Kept(NamedTuple):
    """What an idle agent needs until the next command: a beat now and then, as bytes."""

    beat: bytes
    every_s: float


class Relay:
    """One thread passes on the input, another one the output, until the command ends or its client leaves.

    The client gets `lost` if the connection breaks, `refused` if the server does not start the command.
    """

    def __init__(
        self,
        channel: Channel,
        sock: socket.socket,
        received: Frames,
        *,
        has_begun: bool,
        lost: ClusterctlError,
        refused: ClusterctlError,
    ) -> None:
        self._channel, self._sock, self._received = channel, sock, received
        self._has_begun, self._lost, self._refused = has_begun, lost, refused
        self._bell = threading.Event()
        self._leaves = False
        channel.settimeout(SLICE_S)
        channel.in_buffer.set_event(_Bell(self._bell))
        channel.in_stderr_buffer.set_event(_Bell(self._bell))

    def run(self) -> Kept | None:
        """Relay to the end. Returns what to do with an agent that stays; all other channels are closed."""
        thread = threading.Thread(target=self._pass_output, daemon=True, name="output")
        thread.start()
        kept = None
        try:
            kept = self._pass_input()
        finally:
            self._leaves = True
            self._bell.set()
            if kept is None:
                with contextlib.suppress(*paramiko_loader.errors()):
                    close_channel(self._channel)
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # it may be blocked by a client that does not read
            thread.join()
        return kept

    def _pass_input(self) -> Kept | None:
        """Pass on input until the client leaves. Once the command has ended, its client gets a broken pipe."""
        with contextlib.suppress(OSError, EOFError, *paramiko_loader.errors()):
            while True:
                kind, data = self._received.next()
                if kind == frames.INPUT and not self._send(data):
                    self._break_pipe()
                    self._has_hung_up(None)
                    return None
                if kind == frames.INPUT_ENDS:
                    with speaking(self._channel):
                        self._channel.shutdown_write()
                if kind == frames.KEEP:
                    about = parse(data)
                    return Kept(about["beat"].encode(), float(about["every_s"]))
        return None

    def _send(self, data: bytes) -> bool:
        """Send input, which waits as long as the command does not read. Returns False if it never will."""
        view = memoryview(data)
        while view:
            try:
                with speaking(self._channel):
                    sent = int(self._channel.send(bytes(view[: self._channel.out_max_packet_size])))
            except TimeoutError:
                if self._has_hung_up():
                    return False
                continue
            except paramiko_loader.errors():
                return False
            if not sent:
                return False
            view = view[sent:]
        return True

    def _break_pipe(self) -> None:
        """Take no more input. What has arrived is dropped: a client whose input fills the socket would see nothing."""
        self._sock.shutdown(socket.SHUT_RD)
        while self._sock.recv(frames.READ_BYTES):
            pass

    def _has_hung_up(self, timeout_ms: int | None = 0) -> bool:
        """Return True if the client has closed its end. None waits until it has."""
        poller = select.poll()
        poller.register(self._sock, 0)  # only what is reported anyway: POLLHUP and POLLERR
        return bool(poller.poll(timeout_ms))

    def _pass_output(self) -> None:
        channel = self._channel
        try:
            if not self._has_begun:
                self._await_begin()
            while not self._leaves:
                ended = channel.eof_received or channel.closed  # checked first: no data follows it
                if not self._pass_pieces():
                    if ended:
                        self._sock.sendall(frames.frame(frames.OUTPUT_ENDS) if channel.eof_received else b"")
                        self._sock.sendall(self._ending())
                        return
                    self._bell.wait()
                    self._bell.clear()
        except OSError:
            return  # the client has gone
        except paramiko_loader.errors():
            with contextlib.suppress(OSError):
                self._sock.sendall(failure(self._lost))

    def _pass_pieces(self) -> bool:
        taken = False
        for is_ready, receive, kind in (
            (self._channel.recv_ready, self._channel.recv, frames.OUTPUT),
            (self._channel.recv_stderr_ready, self._channel.recv_stderr, frames.ERRORS),
        ):
            if is_ready():
                with speaking(self._channel):
                    piece = receive(CHUNK_BYTES)
                self._sock.sendall(frames.frame(kind, piece))
                taken = True
        return taken

    def _await_begin(self) -> None:
        from clusterctl.transport.connection import await_begin

        try:
            await_begin(self._channel, OPEN_CHANNEL_S)
        except paramiko_loader.errors():
            is_lost = not self._channel.transport.is_active()
            self._sock.sendall(failure(self._lost if is_lost else self._refused))
            raise OSError from None

    def _ending(self) -> bytes:
        """Return the frame that ends the output: the exit code, or that the connection was lost."""
        channel = self._channel
        channel.status_event.wait()
        if channel.exit_status >= 0:
            return frames.frame(frames.EXIT, b"%d" % channel.exit_status)
        if getattr(channel, "ended_by_peer", False):
            return frames.frame(frames.EXIT, b"%d" % NO_STATUS)
        return failure(self._lost)


def failure(error: ClusterctlError) -> bytes:
    return frames.json_frame(frames.FAILURE, error_to_json(error))


class _Bell:
    """Sets an event when a stream has data; an empty stream does not clear it."""

    def __init__(self, event: threading.Event) -> None:
        self.set = event.set

    def clear(self) -> None:
        """Do nothing: paramiko calls this when one of the streams is empty."""
