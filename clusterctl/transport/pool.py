"""A pool of connections, one per server: opened on demand, shared by threads, kept until broken or evicted."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError
from clusterctl.transport.dial import Dialer
from clusterctl.transport.known_hosts import HostKey
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.transport.connection import Connection


class Pool:
    """Connections by target. Threads that need the same server share one attempt and its failure.

    A connection costs a file descriptor and a thread. Beyond `max_connections`, the one that was idle longest is closed
    before another is opened. The limit is exceeded only if more connections are in use at the same time.
    """

    def __init__(self, dialer: Dialer, max_connections: int) -> None:
        self._dialer = dialer
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._connections: dict[Target, Future[Connection]] = {}  # the most recently used comes last
        self._leases: Counter[Target] = Counter()

    @contextlib.contextmanager
    def lease(self, target: Target) -> Iterator[Connection]:
        """Yield the connection to a server. It is not evicted within this context, nor while it has an open channel."""
        with self._lock:
            self._leases[target] += 1
        try:
            yield self.connection(target)
        finally:
            with self._lock:
                self._leases[target] -= 1
                if not self._leases[target]:
                    del self._leases[target]

    def connection(self, target: Target) -> Connection:
        """Return the open connection to a server, through its jump hosts. Raises as `Dialer.connect` does."""
        with self._lock:
            future = self._connections.pop(target, None)
            if future is not None and _broken(future):
                future = None
            mine = future is None
            future = self._connections[target] = future or Future()
        if mine:
            self._evict_idle()
            self._connect(target, future)
        try:
            return future.result()
        except ClusterctlError as exc:
            if mine:
                raise
            raise type(exc)(exc.message, node=target.label, hint=exc.hint, details=exc.details) from exc

    def host_key(self, target: Target) -> HostKey:
        """Return the key that a server presents, through its jump hosts."""
        if target.via is None:
            return self._dialer.host_key(target)
        with self.lease(target.via) as gateway:
            return self._dialer.host_key(target, gateway)

    def close(self) -> None:
        """Close every connection and make every attempt fail; a later call reconnects."""
        with self._lock:
            futures = list(self._connections.values())
            self._connections.clear()
        self._dialer.abort()
        connections = [future.result() for future in futures if future.done() and future.exception() is None]
        for connection in connections:  # all of them first, so that their threads end concurrently
            connection.wire.hang_up()
        for connection in connections:
            connection.close()

    def _evict_idle(self) -> None:
        with self._lock:
            idle = (
                target for target, future in self._connections.items() if not self._leases[target] and _idle(future)
            )
            chosen = list(itertools.islice(idle, max(0, len(self._connections) - self._max_connections)))
            connections = [self._connections.pop(target).result() for target in chosen]
        for connection in connections:
            connection.close()

    def _connect(self, target: Target, future: Future[Connection]) -> None:
        try:
            if target.via is None:
                connection = self._dialer.connect(target)
            else:
                with self.lease(target.via) as gateway:
                    connection = self._dialer.connect(target, gateway)
        except BaseException as exc:  # noqa: BLE001 - reaches every waiting thread, including this one
            with self._lock:
                if self._connections.get(target) is future:
                    del self._connections[target]
            future.set_exception(exc)
            return
        with self._lock:
            current = self._connections.get(target) is future
        future.set_result(connection)
        if not current:  # closed in the meantime
            connection.close()


def _idle(future: Future[Connection]) -> bool:
    return future.done() and future.exception() is None and future.result().idle


def _broken(future: Future[Connection]) -> bool:
    return future.done() and (future.exception() is not None or not future.result().is_active())
