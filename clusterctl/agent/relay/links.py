"""The values that both ends of a relay's links share: keys, branches, limits, and how far one may lag."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

PIECE = 64 << 10
STALL_S = 10.0  # nothing for so long, and the other side is given up
CUT_S = 1.0  # the same, when the stream has broken
Source = Callable[[int], bytes]


class RelayBroken(Exception):  # noqa: N818 - not a failure: what is missing comes directly
    """The stream will not go on. What came before it is good, as far as its hashes say so."""


class Keys(NamedTuple):
    """This node's private key and certificate, and the authority of this dispatch, as PEM. Secrets; never log them."""

    own: str
    authority: str


class Branch(NamedTuple):
    """A downstream node: where it listens, the name in its certificate, and how many nodes it stands for, with it."""

    address: str
    port: int
    name: str
    nodes: int = 1


class Lag:
    """How long a downstream node may hold up the nodes before it. Pure but for the clock, which is an argument.

    It is given up when the time spent waiting for it exceeds an allowance, and the time not spent so up to
    `MOST` times: sending directly to the nodes behind it would cost as much. Nodes nearer to the start allow more,
    so that of a chain only the neighbour of the slow node gives it up.
    """

    MOST = 3
    ALLOWED_S = 2.0
    ALLOWED_MORE_S = 0.2

    def __init__(self, nodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed_s = self.ALLOWED_S + self.ALLOWED_MORE_S * nodes
        self._factor = min(nodes, self.MOST)
        self._began = clock()
        self._waited_s = 0.0

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def left_s(self) -> float:
        """How much longer it may be waited for; not above zero: no longer."""
        worked_s = self._clock() - self._began - self._waited_s
        return self._allowed_s + self._factor * worked_s - self._waited_s
