"""The connections to downstream nodes: TLS, both sides authenticated by this dispatch's authority and by name.

TLS 1.2 by choice: the standard library cannot choose the cipher of TLS 1.3, whose default is AES-256, a third slower
to send. Also, in 1.2 neither side sends a byte of the stream before both are authenticated.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from clusterctl.agent.relay.links import STALL_S, Branch, Keys, Lag

CALL_S = 5.0  # for a connection and its handshake
PATIENCE_MORE_S = 0.5  # beyond STALL_S, for each node behind: only the neighbour of a stalled node drops it
PATIENCE_MOST_S = 10.0
BUFFERED = 16 << 20  # bytes that a downstream node may be behind
SLOWEST = 1 << 20  # bytes per second, once there is nothing else to wait for
CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"


class Downstream:
    """A node that gets the stream from this one. At most BUFFERED bytes are queued for it.

    A thread connects to it. After that, the user of the relay sends: passing pieces to a thread costs more than TLS.
    """

    def __init__(self, context: ssl.SSLContext, branch: Branch) -> None:
        self.name = branch.name
        self.lost = False
        self._branch = branch
        self._lag = Lag(branch.nodes)
        self._patience_s = STALL_S + min(PATIENCE_MORE_S * branch.nodes, PATIENCE_MOST_S)
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._ready = False
        self._moved = 0.0
        self._deadline = self._stall_s = 0.0
        family = socket.AF_INET6 if ":" in branch.address else socket.AF_INET
        self._sock = context.wrap_socket(socket.socket(family, socket.SOCK_STREAM), do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._call, name=f"relay-{self.name}", daemon=True)
        self._thread.start()

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
        if not self._thread.is_alive() and not self._ready:  # in this order: the thread sets _ready before it ends
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
        if self._ready:
            ready = bool(wait_for(None, [self], limit_s))
        else:
            self._thread.join(max(limit_s, 0))
            ready = not self._thread.is_alive()
        if ready:
            self.pump()
        return ready

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
        self._queue.clear()
        hang_up(self._sock)

    def close(self) -> None:
        self._queue.clear()
        hang_up(self._sock)
        self._thread.join()
        self._sock.close()

    def _call(self) -> None:
        """Connect and do the handshake, in a thread; then `pump` uses the connection."""
        deadline = time.monotonic() + CALL_S
        address = (self._branch.address, self._branch.port)
        with contextlib.suppress(OSError, ValueError):
            self._sock.settimeout(CALL_S)
            self._sock.connect(address)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.settimeout(max(deadline - time.monotonic(), 0.1))
            self._sock.do_handshake()
            self._sock.setblocking(False)
            self._ready = is_named(self._sock, self.name)


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
    """Wait until each node has received all bytes queued for it, or was dropped; then close.

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
        node.close()


def tls_context(keys: Keys, *, server: bool) -> ssl.SSLContext:
    """Return the TLS context of a relay. Names are checked by `is_named`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=keys.authority)
    with _in_a_file(keys.own) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _in_a_file(secret: str) -> Iterator[str]:
    """Write a secret to a file, in memory if possible, else private: the ssl module reads keys only from files."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("relay")
        with os.fdopen(fd, "w") as f:
            f.write(secret)
            f.flush()
            yield f"/proc/self/fd/{fd}"
    else:
        with tempfile.NamedTemporaryFile("w") as named:
            named.write(secret)
            named.flush()
            yield named.name


def is_named(sock: ssl.SSLSocket, name: str) -> bool:
    """Return True if the verified certificate of the other side has this common name."""
    subject = (sock.getpeercert() or {}).get("subject", ())
    return (("commonName", name),) in subject


def hang_up(sock: socket.socket) -> None:
    """Wake threads that wait for the socket. Not SSLSocket.shutdown: after it a thread might send unencrypted."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
