"""The connections of a relay: TLS, both sides authenticated by the authority of this dispatch, and by name.

TLS 1.2 by choice: the standard library cannot choose the cipher of TLS 1.3, whose default is AES-256, a third slower
to send. Besides, in 1.2 neither side sends a byte of the stream before both are known.
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
PATIENCE_MORE_S = 0.5  # than STALL_S, for each node behind: only the neighbour of a node that stands still gives it up
PATIENCE_MOST_S = 10.0
BUFFERED = 16 << 20  # that a downstream node may be behind
SLOWEST = 1 << 20  # bytes a second, once there is nothing else to wait for
CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"


class Downstream:
    """A node that gets the stream from here. At most BUFFERED bytes wait for it.

    A thread calls it; once it answered, whoever uses the relay sends: handing pieces to a thread costs more than TLS.
    """

    def __init__(self, context: ssl.SSLContext, branch: Branch) -> None:
        self.name = branch.name
        self.lost = False
        self._branch = branch
        self._lag = Lag(branch.nodes)
        self._patience_s = STALL_S + min(PATIENCE_MORE_S * branch.nodes, PATIENCE_MOST_S)
        self._queue: deque[memoryview] = deque()
        self._waiting = 0
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
        """Whether it has something to send as soon as the other side takes it."""
        return self._ready and bool(self._queue) and not self.lost

    def put(self, piece: memoryview) -> None:
        """Queues a piece and sends what goes; waits while too much waits.

        Gives the node up if it lags too long, or takes nothing at all for a while: that of a lag grows with the work.
        """
        if self.lost:
            return
        self._queue.append(piece)
        self._waiting += len(piece)
        self.pump()
        since = time.monotonic()
        while self._waiting > BUFFERED and not self.lost:
            stalled_s = time.monotonic() - max(self._moved, since)
            left_s = min(self._lag.left_s(), self._patience_s - stalled_s)
            began = time.monotonic()
            if not self.wait(left_s):
                self.give_up()
            self._lag.waited(time.monotonic() - began)

    def pump(self) -> None:
        """Sends what the other side takes now."""
        if not self._thread.is_alive() and not self._ready:  # in this order: the thread ends after it said so
            self.give_up()
        try:
            while self.wants:
                count = self._sock.send(self._queue[0])
                self._waiting -= count
                self._moved = time.monotonic()
                rest = self._queue.popleft()[count:]
                if rest:
                    self._queue.appendleft(rest)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.give_up()

    def wait(self, limit_s: float) -> bool:
        """Until it was called, or can take much, and takes it; False when it could not for so long.

        Then a little more might go into the buffers of the system, and say nothing about the other side.
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
        """From now on only what is queued matters, and it must go at a rate that is worth waiting for."""
        self._stall_s, self._moved = self._patience_s if stall_s is None else stall_s, time.monotonic()
        self._deadline = self._moved + self._stall_s + self._waiting / SLOWEST

    def drain_left_s(self) -> float:
        """How much longer the drain may last without progress; 0 when it is over, in whichever way."""
        if self.lost or (self._ready and not self._queue):
            return 0
        left_s = min(self._deadline, self._moved + self._stall_s) - time.monotonic()
        if left_s <= 0:
            self.give_up()
        return max(left_s, 0)

    def give_up(self) -> None:
        self.lost = True
        self._queue.clear()
        hang_up(self._sock)

    def close(self) -> None:
        self._queue.clear()
        hang_up(self._sock)
        self._thread.join()
        self._sock.close()

    def _call(self) -> None:
        """A thread: connects, shakes hands, and leaves the connection to `pump`."""
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
    """The descriptors that are ready: what came from upstream, and downstream nodes that take more; none: too late."""
    poll = select.poll()
    if upstream is not None:
        poll.register(upstream, select.POLLIN)
    for node in downstream:
        if node.wants:
            poll.register(node, select.POLLOUT)
    return [fd for fd, _ in poll.poll(max(limit_s, 0) * 1000)]


def drain(nodes: Iterable[Downstream], stall_s: float | None) -> None:
    """Waits until each node took everything that is queued for it, or was given up; then closes.

    A node may stand still for `stall_s`; None: as long as before.
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
    """Names are checked by `is_named`."""
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
    """The ssl module reads keys from files only: one in memory where there is such a thing, else a private one."""
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
    """Whether the verified certificate of the other side has this common name."""
    subject = (sock.getpeercert() or {}).get("subject", ())
    return (("commonName", name),) in subject


def hang_up(sock: socket.socket) -> None:
    """Wakes whoever waits for it. Not SSLSocket.shutdown, after which a thread might send in the clear."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
