"""The lease on a node's processes: they run while the lead answers, and else its guardian kills them.

So a node that others have given up does not go on beside those that took its processes over, whatever has become of its
network or its supervisor. Time is that since boot, which goes on while the machine is suspended. After C. Gray and D.
Cheriton, Leases, SOSP 1989.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from typing import Callable

SHARE = 0.7  # of NODE_GRACE_S, after which others take the processes over
GOODBYE = b"bye"
LOOK_S = 1.0  # the kernel's timeouts do not count the time of a suspended machine
REAPED_S = 5.0  # after the end of a lapse, deaths that the guardian caused have been seen


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A supervisor's side. `lifeline` is the pipe to its guardian; a lease of `seconds` begins when a message is sent
    that the lead answers.
    """

    def __init__(self, seconds: float, lifeline: int, clock: Callable[[], float] = since_boot) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until = clock() + seconds
        self._lapsed = -REAPED_S  # when it was last extended after it had expired
        self.hand_over(lifeline)

    @property
    def expired(self) -> bool:
        """True if nothing may run here: the guardian kills it."""
        return self._clock() >= self._until

    @property
    def was_expired(self) -> bool:
        """True if a process that has just been killed may have been killed by the guardian."""
        return self.expired or self._clock() < self._lapsed + REAPED_S

    def extend(self, sent: float) -> None:
        """Handle an answer to a message that was sent at this time since boot."""
        if sent + self._seconds > self._until:
            if self.expired:
                self._lapsed = self._clock()
            self._until = sent + self._seconds
            self._tell()

    def hand_over(self, lifeline: int) -> None:
        """Tell a new guardian."""
        self._lifeline = lifeline
        os.set_blocking(lifeline, False)
        self._tell()

    def _tell(self) -> None:
        try:
            os.write(self._lifeline, b"%.3f\n" % self._until)
        except OSError:  # it is dead, or has been halted for very long
            return


class HeldLease:
    """A guardian's side. `has_left` and `has_died` tell how the supervisor ended. Pure."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._rest = b""
        self.has_left = self.has_died = False

    def receive(self, data: bytes) -> None:
        """Handle what comes from the supervisor; nothing at its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.has_left = GOODBYE in lines
        self.has_died = not data and not self.has_left
        if not self.has_left:
            known = [] if self._until is None else [self._until]
            self._until = max([*known, *map(float, lines)], default=None)

    def expired(self, now: float) -> bool:
        return self._until is not None and now >= self._until

    def next_look_s(self, now: float) -> float:
        """Return the seconds until the next look at the clock."""
        left_s = LOOK_S if self._until is None else min(LOOK_S, max(0.0, self._until - now))
        return left_s or LOOK_S


def losses(lifeline: int, clock: Callable[[], float] = since_boot) -> Iterator[str]:
    """Yield "expired" every second while the lease is, and "died" at the end of the lifeline.

    It ends without that when the supervisor has said goodbye.
    """
    held = HeldLease()
    while True:
        if select.select([lifeline], [], [], held.next_look_s(clock()))[0]:
            held.receive(os.read(lifeline, 1 << 16))
            if held.has_died:
                yield "died"
            if held.has_died or held.has_left:
                return
        if held.expired(clock()):
            yield "expired"
