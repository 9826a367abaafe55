"""A single-threaded event loop for descriptors, timers and signals: all that a supervisor needs."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
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
