"""The connections to downstream nodes: TLS, both sides authenticated by this dispatch's authority and by name."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.relay.links import STALL_S, DownstreamNode, Lag
from clusterctl.agent.tls import shake_hands
from clusterctl.transfer.tls import peer_name

CALL_S = 5.0  # for a connection and its handshake
PATIENCE_MORE_S = 0.5  # beyond STALL_S, for each node behind: only the neighbour of a stalled node drops it
PATIENCE_MOST_S = 10.0
BUFFERED = 16 << 20  # bytes that a downstream node may be behind
SLOWEST = 1 << 20  # bytes per second, once there is nothing else to wait for


class Downstream:
    """A node that gets the stream from this one. At most BUFFERED bytes are queued for it.

    `loop`, which runs in a thread of its own from now until shortly before `close`, connects to it. After that, the
    user of the relay sends: passing pieces to a thread costs more than TLS.
    """

    def __init__(self, loop: EventLoop, context: ssl.SSLContext, branch: DownstreamNode) -> None:
        self.name = branch.name
        self.lost = False
        self._loop = loop
        self._context = context
        self._lag = Lag(branch.nodes)
        self._patience_s = STALL_S + min(PATIENCE_MORE_S * branch.nodes, PATIENCE_MOST_S)
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._ready = False
        self._moved = 0.0
        self._deadline = self._stall_s = 0.0
        self._called = time.monotonic()
        self._settled = threading.Event()
        try:
            self._sock = loop.connect((branch.address, branch.port), CALL_S, self._shake_hands)
        except OSError:  # such as an address of an interface that is not here
            self._sock = socket.socket()
            self._settled.set()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants(self) -> bool:
        """True if bytes are queued and can be sent as soon as the node accepts them."""
        return self._ready and bool(self._queue) and not self.lost

    def put(self, piece: memoryview) -> None:
        """Queue a piece and send what the node accepts; wait while too much is queued.

        Drop the node if it lags too long, or accepts nothing for a while. The allowed lag grows with the work done.
        """
        if self.lost:
            return
        self._queue.append(piece)
        self._queued += len(piece)
        self.pump()
        since = time.monotonic()
        while self._queued > BUFFERED and not self.lost:
            stalled_s = time.monotonic() - max(self._moved, since)
            left_s = min(self._lag.left_s(), self._patience_s - stalled_s)
            began = time.monotonic()
            if not self.wait(left_s):
                self.drop()
            self._lag.waited(time.monotonic() - began)

    def pump(self) -> None:
        """Send what the node accepts now."""
        if self._settled.is_set() and not self._ready:
            self.drop()
        try:
            while self.wants:
                count = self._sock.send(self._queue[0])
                self._queued -= count
                self._moved = time.monotonic()
                rest = self._queue.popleft()[count:]
                if rest:
                    self._queue.appendleft(rest)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.drop()

    def wait(self, limit_s: float) -> bool:
        """Wait until the node is connected or accepts more, and send it. Return False after `limit_s` without either.

        A node that is not ready is not sent more: a little might fit into the system's buffers, and prove nothing.
        """
        limit_s = max(limit_s, 0)
        is_changed = bool(wait_for(None, [self], limit_s)) if self._ready else self._settled.wait(limit_s)
        if is_changed:
            self.pump()
        return is_changed

    def begin_drain(self, stall_s: float | None) -> None:
        """Begin to send only the queued bytes, at a minimum rate."""
        self._stall_s, self._moved = self._patience_s if stall_s is None else stall_s, time.monotonic()
        self._deadline = self._moved + self._stall_s + self._queued / SLOWEST

    def drain_left_s(self) -> float:
        """Return how much longer the drain may last without progress; 0 if it has finished or failed."""
        if self.lost or (self._ready and not self._queue):
            return 0
        left_s = min(self._deadline, self._moved + self._stall_s) - time.monotonic()
        if left_s <= 0:
            self.drop()
        return max(left_s, 0)

    def drop(self) -> None:
        self.lost = True
        self.end()

    def end(self) -> None:
        """Send no more, and let the node see the end."""
        self._queue.clear()
        if self._ready:
            hang_up(self._sock)

    def close(self) -> None:
        self.end()
        self._sock.close()

    def _shake_hands(self, sock: socket.socket, error: int) -> None:
        """Do the handshake with the node, unless the connection failed; in the thread of the loop, as `_greet`."""
        if error:
            self._settled.set()
            return
        try:
            tls = self._context.wrap_socket(sock, do_handshake_on_connect=False)
        except (OSError, ValueError):  # the node hung up at once
            self._settled.set()
            return
        self._sock = tls
        limit_s = max(self._called + CALL_S - time.monotonic(), 0.1)
        shake_hands(self._loop, tls, limit_s, lambda error: self._greet(tls, error))

    def _greet(self, sock: ssl.SSLSocket, error: OSError | None) -> None:
        self._ready = error is None and peer_name(sock) == self.name
        if self.lost or not self._ready:  # `drop` hangs up if it comes later
            hang_up(sock)
        self._settled.set()


def wait_for(upstream: socket.socket | None, downstream: Iterable[Downstream], limit_s: float) -> list[int]:
    """Return the descriptors that are ready: upstream with data, downstream nodes that accept more; [] on timeout."""
    poll = select.poll()
    if upstream is not None:
        poll.register(upstream, select.POLLIN)
    for node in downstream:
        if node.wants:
            poll.register(node, select.POLLOUT)
    return [fd for fd, _ in poll.poll(max(limit_s, 0) * 1000)]


def drain(nodes: Iterable[Downstream], stall_s: float | None) -> None:
    """Wait until each node has received all bytes queued for it, or was dropped; then end its stream.

    A node may stall for `stall_s`; None: as long as before.
    """
    nodes = list(nodes)
    for node in nodes:
        node.begin_drain(stall_s)
    while behind := [node for node in nodes if node.drain_left_s() > 0]:
        limit_s = min(node.drain_left_s() for node in behind)
        if any(node.wants for node in behind):
            wait_for(None, behind, limit_s)
        else:
            behind[0].wait(limit_s)
        for node in behind:
            node.pump()
    for node in nodes:
        node.end()


def hang_up(sock: socket.socket) -> None:
    """Wake threads that wait for the socket. Not SSLSocket.shutdown: after it a thread might send unencrypted."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
