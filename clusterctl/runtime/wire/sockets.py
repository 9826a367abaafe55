"""The ZeroMQ sockets of both sides: bounded queues and frames, keys, bounded time to close."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zmq
from zmq.utils import z85

from clusterctl.common.port_claims import claim
from clusterctl.runtime.errors import ProcessError
from clusterctl.runtime.wire import messages as wire

PORTS_TRIED = 1_000

_CLOSE_MS = 2_000
#: A connection that has not authenticated by then is closed.
_HANDSHAKE_MS = 10_000
_MOST_IO_THREADS = 4
#: Messages queued for a trainer before further ones are dropped; it never has as many in flight.
TO_A_TRAINER = 512

# Plain numbers: combining enumeration members takes longer than sending a small frame.
AT_ONCE = int(zmq.NOBLOCK)
_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
CAN_RECEIVE, CAN_SEND = int(zmq.POLLIN), int(zmq.POLLOUT)


#: Just below the largest allocation that glibc's malloc learns from.
_LESSON_BYTES = 2**25 - 2**16


def open_context(lanes: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    keep_freed_memory()
    return zmq.Context(io_threads=max(1, min(lanes, _MOST_IO_THREADS)))


def keep_freed_memory() -> None:
    """Let malloc keep up to 64 MB that was freed, for the next messages, rather than return it to the system each time.

    Otherwise received arrays of 1 MB take page faults for a fifth of their cost. glibc comes to the same by itself once
    a program has freed an array of 32 MB; limits in its environment variables stay.
    """
    with contextlib.suppress(MemoryError):
        np.empty(_LESSON_BYTES, np.uint8)


def open_router(context: zmq.Context[zmq.Socket[bytes]], keys: Mapping[str, Any] | None) -> zmq.Socket[bytes]:
    """Open a pserver's socket. With keys it accepts CURVE only, and needs a `CurveAuthenticator` in its context."""
    socket = context.socket(zmq.ROUTER)
    _bound(socket)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.RCVHWM, 16)
    socket.setsockopt(zmq.SNDHWM, TO_A_TRAINER)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, str(keys["secret"]).encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, b"clusterctl")
    return socket


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Mapping[str, Any] | None, server_key: str
) -> zmq.Socket[bytes]:
    """Open a trainer's socket to one pserver at `host:port`."""
    socket = context.socket(zmq.DEALER)
    _bound(socket)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.SNDHWM, 64)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, str(keys["public"]).encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, str(keys["secret"]).encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    socket.connect(f"tcp://{address}")
    return socket


def bind_first_free(socket: zmq.Socket[bytes], port: int, address: str = "") -> int:
    """Bind the first free port from `port` on all addresses, on IPv6 too if this process's `address` is IPv6.

    Raises ProcessError if no port is free.
    """
    everywhere = "0.0.0.0"
    if ":" in address:
        socket.setsockopt(zmq.IPV6, 1)
        everywhere = "[::]"
    last = min(port + PORTS_TRIED, 65_536)
    for candidate in range(port, last):
        claimed = claim(candidate)
        if claimed is None:
            continue
        try:
            socket.bind(f"tcp://{everywhere}:{candidate}")
        except zmq.ZMQError as exc:
            claimed.close()
            if exc.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ProcessError(f"port {candidate} cannot be bound ({exc})") from exc
        else:
            claimed.detach()  # held until this process ends
            return candidate
    raise ProcessError(f"no free port in {port}..{last - 1}", remedy="set PORT to a range that is free on this node")


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    """Send like `send_multipart(frames, NOBLOCK, copy=False)`, at half its cost for small messages."""
    for frame in frames[:-1]:
        socket.send(frame, _AND_MORE, copy=False)
    socket.send(frames[-1], AT_ONCE, copy=False)


def receive_frames(socket: zmq.Socket[bytes], flags: int = 0) -> list[zmq.Frame]:
    """Receive like `recv_multipart(flags, copy=False)`, at half its cost, since a frame knows if more follow."""
    frames = [socket.recv(flags, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(flags, copy=False))
    return frames


def descriptor_of(socket: zmq.Socket[bytes]) -> int:
    """Return a descriptor that becomes readable when `events_of(socket)` may have changed.

    Any use of the socket may take that signal: ask for the events after it, and before waiting for the descriptor.
    """
    return int(socket.getsockopt(zmq.FD))


def events_of(socket: zmq.Socket[bytes]) -> int:
    """Return CAN_RECEIVE, CAN_SEND, both or 0."""
    return int(socket.getsockopt(_EVENTS))


def _bound(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    socket.setsockopt(zmq.LINGER, _CLOSE_MS)
    socket.setsockopt(zmq.SNDTIMEO, 10_000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


ENDPOINT = "inproc://zeromq.zap.01"


class CurveAuthenticator:
    """Answers libzmq's ZAP requests in a thread, from before the first connection until the context is terminated."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allow: Mapping[str, str]) -> None:
        self.allow(allow)
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="clusterctl-zap", daemon=True)
        self._thread.start()

    def allow(self, allow: Mapping[str, str]) -> None:
        """Accept new connections with these public keys only, each with the user id that ZeroMQ then reports."""
        self._names = {z85.decode(key.encode()): name.encode() for key, name in allow.items()}

    def _serve(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self.answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            self._socket.close()

    def answer(self, request: list[bytes]) -> list[bytes]:
        """Return the ZAP reply to a ZAP request."""
        number = request[1] if len(request) > 1 else b""
        name = None
        if len(request) == 7 and request[0] == b"1.0" and request[5] == b"CURVE":
            name = self._names.get(request[6])
        if name is None:
            return [b"1.0", number, b"400", b"this key is not on the run's list", b"", b""]
        return [b"1.0", number, b"200", b"OK", name, b""]


def rank_of(user: str) -> int:
    """Return the trainer's rank that a ZAP user id names, -1 if it is not a trainer's."""
    role, _, number = user.partition("-")
    return int(number) if role == "trainer" and number.isdigit() else -1
