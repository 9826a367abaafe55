"""Simulated time: calls in the order of their times, then of their making."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (self.now + delay_s, next(self._order), call))

    def pass_until(self, t: float) -> None:
        while self._calls and self._calls[0][0] <= t:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = t
