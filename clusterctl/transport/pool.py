"""One connection per server, made when first needed, shared by threads, and kept until it breaks."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError
from clusterctl.transport.dial import Dialer
from clusterctl.transport.hostkeys import HostKey
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.transport.link import Link


class Pool:
    """Links by target. Threads that want the same server share one attempt, and its failure."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._lock = threading.Lock()
        self._links: dict[Target, Future[Link]] = {}

    def link(self, target: Target) -> Link:
        """The open link to a server, through its jump hosts. Raises what `Dialer.connect` raises."""
        with self._lock:
            future = self._links.get(target)
            if future is not None and _broken(future):
                future = None
            mine = future is None
            if future is None:
                future = self._links[target] = Future()
        if mine:
            self._connect(target, future)
        try:
            return future.result()
        except ClusterctlError as exc:
            if mine:
                raise
            raise type(exc)(exc.message, node=target.label, hint=exc.hint, details=exc.details) from exc

    def host_key(self, target: Target) -> HostKey:
        """The key that a server shows, looked at through its jump hosts."""
        gateway = self.link(target.via) if target.via else None
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

    def _connect(self, target: Target, future: Future[Link]) -> None:
        try:
            gateway = self.link(target.via) if target.via else None
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


def _broken(future: Future[Link]) -> bool:
    return future.done() and (future.exception() is not None or not future.result().is_active())
