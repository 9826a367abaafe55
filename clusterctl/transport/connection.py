"""A paramiko transport that is fast and quiet, and that detects a dead peer."""

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
from clusterctl.transport.channels import OPEN_CHANNEL_S, close_channel

THREAD_END_S = 2
WINDOW_BYTES = 4 * 1024 * 1024
PACKET_BYTES = 32 * 1024
READ_AHEAD_BYTES = 256 * 1024
MOST_PACKET_BYTES = 256 * 1024  # as in OpenSSH; paramiko would read 4 GB
MOST_UNREAD_BYTES = 2 * WINDOW_BYTES  # of a channel; paramiko keeps what a server sends beyond the window
IDLE_LOOK_S = 4.0  # how often a silent connection is looked at, 60 us of CPU each time: 1,000 of them wait for long
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
# Signal numbers of Linux, even if this machine uses others.
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}  # fmt: skip


class Wire:
    """A socket that reads ahead, acknowledges at once, and closes if its peer is dead.

    paramiko reads each packet in two small pieces, each with a poll; reading ahead avoids most of them.
    Servers with Nagle's algorithm on wait for our acknowledgement, which Linux delays by 40 ms.
    Once watched, a peer counts as dead if for `patience_s` it does not reply to a probe or accepts no data. In the
    second case paramiko would retry forever, blocking the sender and, through its lock, the reading thread.
    """

    def __init__(self, sock: socket.socket | Channel) -> None:
        self._sock = sock
        self._ahead = b""
        self._offset = 0
        tcp = getattr(sock, "family", None) in (socket.AF_INET, socket.AF_INET6)
        self._quick = getattr(socket, "TCP_QUICKACK", None) if tcp else None
        self.settimeout = sock.settimeout
        self._silence_s = self._patience_s = math.inf
        self._probe: Callable[[], None] = lambda: None
        self._received_at = time.monotonic()
        self._probed_at: float | None = None
        self._blocked_at: float | None = None

    def watch(self, silence_s: float, patience_s: float, probe: Callable[[], None]) -> None:
        """Start to probe a silent peer, from the reading thread, and to hang up if it is dead."""
        self._silence_s, self._patience_s, self._probe = silence_s, patience_s, probe

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
            self._check_silence()
            raise
        self._received_at, self._probed_at = time.monotonic(), None
        if self._quick is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, self._quick, 1)

    def _check_silence(self) -> None:
        if self._probed_at is not None:
            self._end_if_dead_since(self._probed_at)
        elif time.monotonic() - self._received_at > self._silence_s:
            self._probed_at = time.monotonic()
            self._probe()

    def send(self, data: bytes) -> int:
        try:
            sent = self._sock.send(data)
        except TimeoutError:
            self._blocked_at = self._blocked_at or time.monotonic()
            self._end_if_dead_since(self._blocked_at)
            raise
        self._blocked_at = None
        return sent

    def _end_if_dead_since(self, began: float) -> None:
        if time.monotonic() - began > self._patience_s:
            self.hang_up()
            raise EOFError

    def hang_up(self) -> None:
        """Shut down both directions, which wakes the reading thread at once."""
        if not isinstance(self._sock, socket.socket):
            self.close()
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the connection under a channel may have ended first
            self._sock.close()

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    @property
    def _closed(self) -> bool:  # read by paramiko
        if isinstance(self._sock, socket.socket):
            return self._sock.fileno() == -1
        return bool(self._sock.closed)


class Connection(paramiko.Transport):  # type: ignore[misc]
    """One connection, authenticated or about to be. Keeps the signals that killed its commands."""

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
        self.channel_timeout = OPEN_CHANNEL_S  # of any channel; paramiko's limit is an hour
        self._read_all = self.packetizer.read_all
        self.packetizer.read_all = self._read_bounded
        # It would start a timer thread for a deadline that `start_client` enforces too.
        self.packetizer.start_handshake = lambda timeout: None
        options = self.get_security_options()
        options.ciphers = _first(FAST_CIPHERS, options.ciphers)
        recorded = _algorithms(key_types)  # as with OpenSSH, their order in known_hosts means nothing
        options.key_types = _first([name for name in options.key_types if name in recorded], options.key_types)
        options.compression = ("none",)

    def _read_bounded(self, count: int, check_rekey: bool = False) -> Any:
        if count > MOST_PACKET_BYTES:
            raise paramiko.SSHException(f"the server announced a packet of {count:,} bytes")
        return self._read_all(count, check_rekey)

    def watch(self, interval_s: float, unanswered: int) -> None:
        """Start to probe a silent peer; hang up if it does not reply for `unanswered` intervals."""
        self.wire.watch(interval_s, interval_s * unanswered, self._probe)
        self.wire.settimeout(max(self._active_check_timeout, min(IDLE_LOOK_S, interval_s / 4)))

    def _probe(self) -> None:
        if self.in_kex:
            return  # no other message is allowed now, and the peer owes us a reply anyway
        message = paramiko.Message()
        message.add_byte(common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_message(message)

    @property
    def idle(self) -> bool:
        """True if no channel is open."""
        return all(channel.closed for channel in self._channels.values())

    def _parse_debug(self, message: Any) -> None:
        """Ignore it: servers report every variable they set, and paramiko escapes that byte by byte."""

    def _log(self, level: int, text: Any, *args: Any) -> None:
        if self.logger.isEnabledFor(level):  # paramiko formats dozens of lines per connection, usually for no reader
            super()._log(level, text, *args)

    def close(self) -> None:
        """End the connection and its channels, and wake their waiters. Safe to call again."""
        self.wire.hang_up()
        if self.is_alive() and self is not threading.current_thread():
            self.join(THREAD_END_S)
        super().close()
        self.wire.close()
        self._after_close()


def run_in(channel: Channel, command: bytes, timeout_s: float, *, kind: str = "exec") -> None:
    """Make the server run a command, or a "subsystem", in a new channel. Raises as `await_begin` does."""
    ask_to_run(channel, command, kind=kind)
    await_begin(channel, timeout_s)


def ask_to_run(channel: Channel, command: bytes, *, kind: str = "exec") -> None:
    """Send the request. Input for the command may follow at once, which saves a round trip; `ssh` does it too."""
    message = paramiko.Message()
    message.add_byte(common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string(kind)
    message.add_boolean(True)
    message.add_string(command)
    channel._event_pending()
    channel.transport._send_user_message(message)


def await_begin(channel: Channel, timeout_s: float) -> None:
    """Wait until the server has started the command. Raises TimeoutError, where paramiko would wait forever."""
    if not channel.event.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if not channel.event_ready:
        raise channel.transport.get_exception() or paramiko.SSHException("the request was refused")


def _on_channel_request(channel: Any, message: Any) -> None:
    """Keep exit-signal, which paramiko drops, as a shell reports it: 128 + its number."""
    peek = paramiko.Message(message.get_remainder())
    if peek.get_text() == "exit-signal":
        peek.get_boolean()
        name = peek.get_text()
        channel.exit_status = 128 + SIGNALS.get(name, 127)
        channel.status_event.set()
        return
    Channel._handle_request(channel, message)


def _on_channel_data(channel: Any, message: Any) -> None:
    Channel._feed(channel, message)
    _check_unread(channel.in_buffer)


def _on_channel_errors(channel: Any, message: Any) -> None:
    """Pass standard error to its consumer in the reading thread, to save a thread per command."""
    Channel._feed_extended(channel, message)
    take = getattr(channel, "take_errors", None)
    # Reading frees window space. During a key exchange that would wait for its end, which needs this very thread.
    if take is not None and channel.recv_stderr_ready() and not channel.transport.in_kex:
        take(channel.recv_stderr(WINDOW_BYTES))
    _check_unread(channel.in_stderr_buffer)


def _check_unread(buffer: Any) -> None:
    if len(buffer) > MOST_UNREAD_BYTES:
        raise paramiko.SSHException("the server sent more than the window of a channel")


def _on_channel_close(channel: Any, message: Any) -> None:
    channel.ended_by_peer = True
    close_channel(channel)
    channel.transport._unlink_channel(channel.chanid)


Connection._channel_handler_table = {
    **paramiko.Transport._channel_handler_table,
    common.MSG_CHANNEL_REQUEST: _on_channel_request,
    common.MSG_CHANNEL_DATA: _on_channel_data,
    common.MSG_CHANNEL_CLOSE: _on_channel_close,
    common.MSG_CHANNEL_EXTENDED_DATA: _on_channel_errors,
}


def _first(wanted: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    """Return the available algorithms, with the wanted ones first, in their order."""
    first = [name for name in wanted if name in available]
    return (*first, *(name for name in available if name not in first))


def _algorithms(key_types: Sequence[str]) -> list[str]:
    """Return the signature algorithms of these key types; today an ssh-rsa key signs with SHA-2."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    return [name for key_type in key_types for name in (rsa if key_type == "ssh-rsa" else (key_type,))]
