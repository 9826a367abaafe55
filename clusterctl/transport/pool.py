"""One connection per server, made when first needed, shared by threads, and kept until it breaks or room is needed."""

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
    """Links by target. Threads that want the same server share one attempt, and its failure.

    A link costs a file descriptor and a thread. Beyond `max_links` the one that has been idle for longest is closed
    before another is made; only links that are in use at the same time can be more.
    """

    def __init__(self, dialer: Dialer, max_links: int) -> None:
        self._dialer = dialer
        self._max_links = max_links
        self._lock = threading.Lock()
        self._links: dict[Target, Future[Link]] = {}  # the one used last comes last
        self._leases: Counter[Target] = Counter()

    @contextlib.contextmanager
    def lease(self, target: Target) -> Iterator[Link]:
        """The link to a server, which makes no room for others as long as this lasts, nor while it has a channel."""
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
        """The open link to a server, through its jump hosts. Raises what `Dialer.connect` raises."""
        with self._lock:
            future = self._links.pop(target, None)
            if future is not None and _broken(future):
                future = None
            mine = future is None
            future = self._links[target] = future or Future()
        if mine:
            self._make_room()
            self._connect(target, future)
        try:
            return future.result()
        except ClusterctlError as exc:
            if mine:
                raise
            raise type(exc)(exc.message, node=target.label, hint=exc.hint, details=exc.details) from exc

    def host_key(self, target: Target) -> HostKey:
        """The key that a server shows, looked at through its jump hosts."""
        if target.via is None:
            return self._dialer.host_key(target)
        with self.lease(target.via) as gateway:
            return self._dialer.host_key(target, gateway)

    def close(self) -> None:
        """Close every connection and make every attempt fail; a later `link` connects anew."""
        with self._lock:
            futures = list(self._links.values())
            self._links.clear()
        self._dialer.abort()
        links = [future.result() for future in futures if future.done() and future.exception() is None]
        for link in links:  # all first, so that their threads end at the same time
            link.wire.hang_up()
        for link in links:
            link.close()

    def _make_room(self) -> None:
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
        except BaseException as exc:  # noqa: BLE001 - reaches every thread that waits, this one included
            with self._lock:
                if self._links.get(target) is future:
                    del self._links[target]
            future.set_exception(exc)
            return
        with self._lock:
            current = self._links.get(target) is future
        future.set_result(link)
        if not current:  # closed meanwhile
            link.close()


def _idle(future: Future[Link]) -> bool:
    return future.done() and future.exception() is None and future.result().idle


def _broken(future: Future[Link]) -> bool:
    return future.done() and (future.exception() is not None or not future.result().is_active())
