"""Connections between supervisors and the lead: JSON lines over mutually authenticated TLS.

A `Connection` is one TLS connection. A `Channel` outlives it: it numbers messages, keeps them until the other side
acknowledges them, and repeats them over the next connection. Frames are `{"s": number, "a": acknowledged, "m": ...}`;
heartbeats have no `s`.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from typing import Callable

from clusterctl.agent.event_loop import READ, WRITE, EventLoop
from clusterctl.agent.lead.channel import MAX_FRAME, parse_frame
from clusterctl.agent.lead.messages import Frame
from clusterctl.common.paths import RunPaths

RETRY_S = 0.5
DIAL_S = 2.0  # better to retry than to wait longer: the kernel backs off
HANDSHAKE_S = 10.0
#: The frame with which a node's guardian reports that its supervisor is dead.
GONE: Frame = {"a": 0, "gone": True}


def tls_context(run: RunPaths, *, server: bool) -> ssl.SSLContext:
    """The TLS context of either side: both need a certificate of this run's authority. `peer_node` checks names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(str(run.tls_authority))
    context.load_cert_chain(str(run.tls))
    return context


def peer_node(sock: ssl.SSLSocket) -> int:
    """The node id in the other side's verified certificate (its common name is `nodeN`)."""
    subject = (sock.getpeercert() or {}).get("subject", ())
    names = {key: value for part in subject for key, value in part}  # type: ignore[str-unpack]
    return int(str(names["commonName"])[len("node") :])


class Connection:
    """One non-blocking TLS connection. `on_open(node)` comes first, `on_closed(error)` last and once."""

    def __init__(
        self,
        loop: EventLoop,
        sock: ssl.SSLSocket,
        on_open: Callable[[Connection, int], None],
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[OSError | None], None] = lambda error: None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_open = on_open
        self.on_frame = on_frame
        self.on_closed = on_closed
        self._node: int | None = None
        self._announced = False
        self._closed = False
        self._pumping = False
        self._wants_write = False
        self._incoming = bytearray()
        self._outgoing = bytearray()
        loop.watch(sock, self._pump, READ | WRITE)
        loop.after(HANDSHAKE_S, self._give_up_handshake)

    def send(self, frame: Frame) -> None:
        if not self._closed:
            self._outgoing += json.dumps(frame, separators=(",", ":")).encode() + b"\n"
            if not self._pumping:  # else this is an answer to a frame being delivered; it is written afterwards
                self._pump()

    def idle(self) -> bool:
        """Return True if all frames have been handed to the kernel."""
        return self._closed or not self._outgoing

    def close(self, error: OSError | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._sock)
        self._sock.close()
        self.on_closed(error)

    def _give_up_handshake(self) -> None:
        if self._node is None:
            self.close(TimeoutError("no TLS handshake"))

    def _pump(self) -> None:
        """Do all the I/O the socket is ready for. Socket errors close the connection, errors of callbacks do not."""
        self._pumping, self._wants_write = True, False
        try:
            error = self._attempt(self._read)
            self._deliver()
            error = error or self._attempt(self._write)
        finally:
            self._pumping = False
        if error is not None:
            self.close(error)
        elif not self._closed:
            self._loop.watch(self._sock, self._pump, READ | (WRITE if self._wants_write else 0))

    def _attempt(self, work: Callable[[], None]) -> OSError | None:
        try:
            work()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._wants_write = True
        except OSError as exc:
            return exc
        except (ValueError, KeyError) as exc:
            return OSError(f"not a supervisor of this run: {exc}")
        return None

    def _read(self) -> None:
        if self._node is None:
            self._sock.do_handshake()
            self._node = peer_node(self._sock)
        while len(self._incoming) <= MAX_FRAME:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed by the other side")
            self._incoming += data
        if b"\n" not in self._incoming:
            raise ValueError("a frame is too long")

    def _deliver(self) -> None:
        if self._node is not None and not self._announced:
            self._announced = True
            self._on_open(self, self._node)
        end = self._incoming.rfind(b"\n") + 1
        lines = bytes(self._incoming[:end]).splitlines()
        del self._incoming[:end]
        for line in lines:
            if self._closed:
                return
            try:
                frame = parse_frame(line)
            except ValueError as exc:
                self.close(OSError(f"not a supervisor of this run: {exc}"))
                return
            self.on_frame(frame)

    def _write(self) -> None:
        while self._outgoing and not self._closed and self._node is not None:
            count = self._sock.send(self._outgoing)
            del self._outgoing[:count]


def reach(
    loop: EventLoop, address: tuple[str, int], limit_s: float, done: Callable[[socket.socket, int], None]
) -> None:
    """Connect, and call `done(socket, error number)` once, with 0 on success. `done` has to close the socket.

    Raises OSError if no address or no descriptor is available.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
    except OSError:
        sock.close()
        raise

    def settle(error: int) -> None:
        timer.cancel()
        loop.unwatch(sock)
        done(sock, error)

    timer = loop.after(limit_s, lambda: settle(errno.ETIMEDOUT))
    if code in (0, errno.EINPROGRESS):
        loop.watch(sock, lambda: settle(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), WRITE)
    else:
        loop.after(0, lambda: settle(code))
