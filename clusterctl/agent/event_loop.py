"""A single-threaded event loop for descriptors, connections, timers and signals: everything on a node that waits for
several sockets runs in one.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """A scheduled call that can be cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class EventLoop:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = False

    def watch(self, source: Any, call: Callable[[], None], events: int = READ) -> None:
        """Call `call` whenever `source` is ready for `events`. A second `watch` of a source replaces the first."""
        try:
            self._selector.modify(source, events, call)
        except KeyError:
            self._selector.register(source, events, call)

    def unwatch(self, source: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (self.now() + delay_s, next(self._order), timer))
        return timer

    def every(self, period_s: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.after(period_s, again)

        self.after(period_s, again)

    def connect(
        self, address: tuple[str, int], limit_s: float, done: Callable[[socket.socket, int], None]
    ) -> socket.socket:
        """Connect, and call `done(socket, error number)` once, with 0 on success. `done` has to close the socket.

        Return the socket at once. Raises OSError if no address or no descriptor is available.
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
            self.unwatch(sock)
            done(sock, error)

        timer = self.after(limit_s, lambda: settle(errno.ETIMEDOUT))
        if code in (0, errno.EINPROGRESS):
            self.watch(sock, lambda: settle(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), WRITE)
        else:
            self.after(0, lambda: settle(code))
        return sock

    def on_signals(self, numbers: Iterable[int], call: Callable[[int], None]) -> None:
        """Call `call(number)` from the loop for each signal, never in the middle of other work."""
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

        def arrived() -> None:
            for number in os.read(read_end, 512):
                call(number)

        self.watch(read_end, arrived)

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        """True unless an earlier call of this turn has unwatched it. A closed socket has no descriptor to look up."""
        with contextlib.suppress(KeyError, ValueError):
            return self._selector.get_map()[key.fileobj].fileobj == key.fileobj
        return False

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Run until `stop`."""
        while not self._stopped:
            timeout = max(0.0, self._timers[0][0] - self.now()) if self._timers else None
            for key, _ in self._selector.select(timeout):
                if self._is_watched(key):
                    key.data()
            while self._timers and self._timers[0][0] <= self.now():
                call = heapq.heappop(self._timers)[2].call
                if call is not None:
                    call()

    def run_in_thread(self, name: str) -> Callable[[], None]:
        """Run in a new thread. Return the function that ends it and frees the loop; another thread calls it, once.

        From then on only the new thread may use the loop.
        """
        wake, bell = os.pipe()
        self.watch(wake, self.stop)
        thread = threading.Thread(target=self.run, name=name, daemon=True)
        thread.start()

        def end() -> None:
            os.close(bell)
            thread.join()
            self.close()
            os.close(wake)

        return end

    def close(self) -> None:
        """Free the loop. What it watched stays open."""
        self._selector.close()
