"""The paramiko transport as we want it: quick, quiet, and aware of a peer that has gone."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import paramiko
from paramiko import common
from paramiko.channel import Channel

from clusterctl import __version__
from clusterctl.transport.channels import close_channel

THREAD_END_S = 2
WINDOW_BYTES = 4 * 1024 * 1024
PACKET_BYTES = 32 * 1024
READ_AHEAD_BYTES = 256 * 1024
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
# As Linux numbers them, whatever this machine does.
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}  # fmt: skip


class Wire:
    """A socket that reads ahead, acknowledges at once, and ends when its peer is dead.

    paramiko reads each packet in two small pieces, each with a poll; reading ahead spares most of them.
    Servers with Nagle's algorithm on wait for our acknowledgement, which Linux delays by 40 ms.
    Once watched, a peer is dead that does not answer a question, or takes nothing of what we send, for so long. The
    second would hold the sender for ever, and behind its lock the reading thread: paramiko tries again without end.
    """

    def __init__(self, sock: socket.socket | Channel) -> None:
        self._sock = sock
        self._ahead = b""
        self._offset = 0
        tcp = getattr(sock, "family", None) in (socket.AF_INET, socket.AF_INET6)
        self._quick = getattr(socket, "TCP_QUICKACK", None) if tcp else None
        self.settimeout = sock.settimeout
        self._silence_s = self._patience_s = math.inf
        self._ask: Callable[[], None] = lambda: None
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None
        self._stuck_at: float | None = None

    def watch(self, silence_s: float, patience_s: float, ask: Callable[[], None]) -> None:
        """From now on ask a peer that has been silent, by its reading thread, and end when it is dead."""
        self._silence_s, self._patience_s, self._ask = silence_s, patience_s, ask

    def recv(self, size: int) -> bytes:
        if self._offset == len(self._ahead):
            self._fill()
        piece = self._ahead[self._offset : self._offset + size]
        self._offset += len(piece)
        return piece

    def _fill(self) -> None:
        try:
            self._ahead, self._offset = self._sock.recv(READ_AHEAD_BYTES), 0
        except TimeoutError:
            self._mind_silence()
            raise
        self._heard_at, self._asked_at = time.monotonic(), None
        if self._quick is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, self._quick, 1)

    def _mind_silence(self) -> None:
        if self._asked_at is not None:
            self._end_if_dead_since(self._asked_at)
        elif time.monotonic() - self._heard_at > self._silence_s:
            self._asked_at = time.monotonic()
            self._ask()

    def send(self, data: bytes) -> int:
        try:
            sent = self._sock.send(data)
        except TimeoutError:
            self._stuck_at = self._stuck_at or time.monotonic()
            self._end_if_dead_since(self._stuck_at)
            raise
        self._stuck_at = None
        return sent

    def _end_if_dead_since(self, began: float) -> None:
        if time.monotonic() - began > self._patience_s:
            self.hang_up()
            raise EOFError

    def hang_up(self) -> None:
        """End both directions, which wakes the reading thread at once."""
        if not isinstance(self._sock, socket.socket):
            self.close()
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # a channel's way to its server may have ended before it
            self._sock.close()

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    @property
    def _closed(self) -> bool:  # paramiko looks at this
        if isinstance(self._sock, socket.socket):
            return self._sock.fileno() == -1
        return bool(self._sock.closed)


class Link(paramiko.Transport):  # type: ignore[misc]
    """One authenticated or authenticating connection. Remembers the signals that commands died of."""

    _active_check_timeout = 0.5
    _CLIENT_ID = f"clusterctl_{__version__}"

    def __init__(
        self,
        sock: socket.socket | Channel,
        *,
        key_types: Sequence[str],
        after_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.wire = Wire(sock)
        self._after_close = after_close
        super().__init__(self.wire, default_window_size=WINDOW_BYTES, default_max_packet_size=PACKET_BYTES)
        # It would start a timer, a thread of its own, for a deadline that `start_client` keeps as well.
        self.packetizer.start_handshake = lambda timeout: None
        options = self.get_security_options()
        options.ciphers = _first(FAST_CIPHERS, options.ciphers)
        options.key_types = _first(_algorithms(key_types), options.key_types)
        options.compression = ("none",)

    def watch(self, interval_s: float, unanswered: int) -> None:
        """From now on ask a silent peer for a sign of life; drop it when none has come for `unanswered` intervals."""
        self.wire.watch(interval_s, interval_s * unanswered, self._ask)

    def _ask(self) -> None:
        if self.in_kex:
            return  # nothing else may be said; the peer owes us an answer as it is
        message = paramiko.Message()
        message.add_byte(common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_message(message)

    @property
    def idle(self) -> bool:
        """Whether no channel is open in it."""
        return all(channel.closed for channel in self._channels.values())

    def _parse_debug(self, message: Any) -> None:
        """Servers tell of every variable that they set; nobody reads it, and paramiko escapes it byte by byte."""

    def _log(self, level: int, text: Any, *args: Any) -> None:
        if self.logger.isEnabledFor(level):  # paramiko composes dozens of lines per connection; mostly for nobody
            super()._log(level, text, *args)

    def close(self) -> None:
        """End the connection and its channels; whoever waits on one wakes. Safe to call again."""
        self.wire.hang_up()
        if self.is_alive() and self is not threading.current_thread():
            self.join(THREAD_END_S)
        super().close()
        self.wire.close()
        self._after_close()


def run_in(channel: Channel, command: bytes, timeout_s: float) -> None:
    """Ask the server to run a command in a new channel. Raises TimeoutError: paramiko would wait for ever."""
    message = paramiko.Message()
    message.add_byte(common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command)
    channel._event_pending()
    channel.transport._send_user_message(message)
    if not channel.event.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if not channel.event_ready:
        raise channel.transport.get_exception() or paramiko.SSHException("it was refused")


def _on_channel_request(channel: Any, message: Any) -> None:
    """paramiko drops exit-signal; keep it as the shell would report it, 128 + its number."""
    peek = paramiko.Message(message.get_remainder())
    if peek.get_text() == "exit-signal":
        peek.get_boolean()
        name = peek.get_text()
        channel.exit_status = 128 + SIGNALS.get(name, 127)
        channel.status_event.set()
        return
    Channel._handle_request(channel, message)


def _on_channel_errors(channel: Any, message: Any) -> None:
    """Standard error goes to who takes it, in the reading thread: a command must not cost another one."""
    Channel._feed_extended(channel, message)
    take = getattr(channel, "take_errors", None)
    # To make room in the window waits for the end of a key exchange, which needs this very thread.
    if take is not None and channel.recv_stderr_ready() and not channel.transport.in_kex:
        take(channel.recv_stderr(WINDOW_BYTES))


def _on_channel_close(channel: Any, message: Any) -> None:
    channel.ended_by_peer = True
    close_channel(channel)
    channel.transport._unlink_channel(channel.chanid)


Link._channel_handler_table = {
    **paramiko.Transport._channel_handler_table,
    common.MSG_CHANNEL_REQUEST: _on_channel_request,
    common.MSG_CHANNEL_CLOSE: _on_channel_close,
    common.MSG_CHANNEL_EXTENDED_DATA: _on_channel_errors,
}


def _first(wanted: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    """The available algorithms, the wanted ones first and in their order."""
    first = [name for name in wanted if name in available]
    return (*first, *(name for name in available if name not in first))


def _algorithms(key_types: Sequence[str]) -> list[str]:
    """The signature algorithms of these key types; an ssh-rsa key signs with SHA-2 nowadays."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    return [name for key_type in key_types for name in (rsa if key_type == "ssh-rsa" else (key_type,))]
