"""The copies of a lane's tables for saves, which are made slice by slice, and what waits until they are made.

A copy is of one moment, so nothing may change the tables meanwhile. What does not change them is answered between two
slices: trainers see that the lane is alive, however large its tables are. A lane waits in slices, too, for the files
that it reads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from clusterctl.runtime.wire import messages as wire

#: Work on a lane that had to wait; it returns outputs.
Work = Callable[[], list[Any]]

#: More messages are not kept: their senders find out, and send them again.
_MOST_KEPT = 65_536
_HARMLESS = (wire.HELLO, wire.PROBE)


class LaneCopies:
    """The copies that a lane is making. Not thread-safe.

    Unless it is `in_slices`, copies are made at once. While `is_paused` the disk is behind, and tables stay
    as they are. `took_s` is how long the last copies took.
    """

    def __init__(self, *, in_slices: bool = False) -> None:
        self.is_paused = False
        self.took_s = 0.0
        self.in_slices = in_slices
        self._slices: deque[Iterator[None]] = deque()
        self._began_s = 0.0
        self._kept: dict[Any, wire.Message | Work] = {}
        self._by_sender: dict[tuple[int, int], dict[Any, wire.Message]] = {}

    @property
    def is_under_way(self) -> bool:
        return bool(self._slices)

    @property
    def holds(self) -> bool:
        """True if nothing may change the tables now."""
        return self.is_paused or bool(self._slices)

    def begin(self, copies: Iterable[Iterator[None]]) -> None:
        """Make copies: each iterator makes one, a slice at a time."""
        if not self._slices:
            self._began_s = time.perf_counter()
        self._slices.extend(copies)
        while not self.in_slices and not self.advance():
            pass

    def advance(self) -> bool:
        """Copy a slice. Return True if all copies are made."""
        while self._slices:
            for _ in self._slices[0]:
                return False
            self._slices.popleft()
        self.took_s = time.perf_counter() - self._began_s
        return True

    def keeps(self, message: wire.Message) -> bool:
        """Keep a message for later and return True, unless it may be handled now.

        A pull may, but not before what its trainer sent earlier.
        """
        if not self.holds or message.kind in _HARMLESS:
            return False
        if message.kind == wire.PULL and (message.rank, message.attempt) not in self._by_sender:
            return False
        self.keep(message)
        return True

    def keep(self, message: wire.Message) -> None:
        """Keep a message for later."""
        sender = message.rank, message.attempt
        number = message.piece if message.kind == wire.PUSH else message.request
        key = sender, message.kind, message.step, number
        if key in self._kept or len(self._kept) < _MOST_KEPT:
            self._kept[key] = self._by_sender.setdefault(sender, {})[key] = message

    def later(self, work: Work) -> None:
        """Keep work for later."""
        self._kept[work] = work

    def messages(self, rank: int, attempt: int) -> list[wire.Message]:
        """Return the kept messages of an attempt of a trainer."""
        return list(self._by_sender.get((rank, attempt), {}).values())

    def next(self) -> wire.Message | Work | None:
        """Return what was kept first and has not been returned, None if there is nothing."""
        if not self._kept:
            return None
        key = next(iter(self._kept))
        kept = self._kept.pop(key)
        if isinstance(kept, wire.Message):
            sender = kept.rank, kept.attempt
            del self._by_sender[sender][key]
            if not self._by_sender[sender]:
                del self._by_sender[sender]
        return kept
