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
    from clusterctl.transport.connection import Link


class Pool:
    """Links by target. Threads that need the same server share one attempt and its failure.

    A link costs a file descriptor and a thread. Beyond `max_links`, the link that was idle longest is closed before
    another is opened. The limit is exceeded only if more links are in use at the same time.
    """

    def __init__(self, dialer: Dialer, max_links: int) -> None:
        self._dialer = dialer
        self._max_links = max_links
        self._lock = threading.Lock()
        self._links: dict[Target, Future[Link]] = {}  # the most recently used comes last
        self._leases: Counter[Target] = Counter()

    @contextlib.contextmanager
    def lease(self, target: Target) -> Iterator[Link]:
        """Yield the link to a server. It is not evicted within this context, nor while it has an open channel."""
        with self._lock:
            self._leases[target] += 1
        try:
            yield self.link(target)
        finally:
            with self._lock:
                self._leases[target] -= 1
                if not self._leases[target]:
                    del self._leases[target]

    def link(self, target: Target) -> Link:
        """Return the open link to a server, through its jump hosts. Raises as `Dialer.connect` does."""
        with self._lock:
            future = self._links.pop(target, None)
            if future is not None and _broken(future):
                future = None
            mine = future is None
            future = self._links[target] = future or Future()
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
        """Close every connection and make every attempt fail; a later `link` reconnects."""
        with self._lock:
            futures = list(self._links.values())
            self._links.clear()
        self._dialer.abort()
        links = [future.result() for future in futures if future.done() and future.exception() is None]
        for link in links:  # all of them first, so that their threads end concurrently
            link.wire.hang_up()
        for link in links:
            link.close()

    def _evict_idle(self) -> None:
        with self._lock:
            idle = (target for target, future in self._links.items() if not self._leases[target] and _idle(future))
            chosen = list(itertools.islice(idle, max(0, len(self._links) - self._max_links)))
            links = [self._links.pop(target).result() for target in chosen]
        for link in links:
            link.close()

    def _connect(self, target: Target, future: Future[Link]) -> None:
        try:
            if target.via is None:
                link = self._dialer.connect(target)
            else:
                with self.lease(target.via) as gateway:
                    link = self._dialer.connect(target, gateway)
        except BaseException as exc:  # noqa: BLE001 - reaches every waiting thread, including this one
            with self._lock:
                if self._links.get(target) is future:
                    del self._links[target]
            future.set_exception(exc)
            return
        with self._lock:
            current = self._links.get(target) is future
        future.set_result(link)
        if not current:  # closed in the meantime
            link.close()


def _idle(future: Future[Link]) -> bool:
    return future.done() and future.exception() is None and future.result().idle


def _broken(future: Future[Link]) -> bool:
    return future.done() and (future.exception() is not None or not future.result().is_active())
