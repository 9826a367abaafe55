"""Values shared by both ends of a relay's links: keys, branches, time limits, and the allowed lag."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

PIECE = 64 << 10
STALL_S = 10.0  # the other side is dropped after so long without progress
CUT_S = 1.0  # the same, once the stream has broken
Source = Callable[[int], bytes]


class RelayBroken(Exception):  # noqa: N818 - not a failure: missing bytes are sent directly
    """The stream will not continue. The bytes received before are good if their hashes match."""


class Keys(NamedTuple):
    """This node's private key and certificate, and the authority of this dispatch, as PEM. Secrets; never log them."""

    own: str
    authority: str


class DownstreamNode(NamedTuple):
    """A downstream node: its address, the name in its certificate, and the number of nodes in its branch."""

    address: str
    port: int
    name: str
    nodes: int = 1


class Lag:
    """The time that a downstream node may delay the nodes before it. Pure: the clock is an argument.

    The node is dropped when the time spent waiting for it exceeds an allowance plus up to `MOST` times the time spent
    working: sending directly to the nodes behind it would take as long. Nodes nearer to the start allow more, so that
    in a chain only the neighbour of the slow node drops it.
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
        """Return how much longer to wait for the node; zero or less means no longer."""
        worked_s = self._clock() - self._began - self._waited_s
        return self._allowed_s + self._factor * worked_s - self._waited_s
