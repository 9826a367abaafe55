"""An operation under way, and how far it is, as one line of text."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from clusterctl.cli import style
from clusterctl.cli.console import human_bytes, human_duration
from clusterctl.escape import clean
from clusterctl.inventory import Node, nodeset

LONGEST_BAR, SHORTEST_BAR = 24, 6
RATE_S = 5.0  # the rate is that of the last seconds
LONGEST_STEP = 60  # characters
MOST_LEFT_S = 100 * 3600


class Operation:
    """What a command is doing. Its methods are the callbacks of stages; any thread may call them.

    `title`: the name of the operation, if it has one. `plain`: lines without a terminal, too, if it takes long.
    """

    def __init__(self, title: str, *, plain: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.title = title
        self.plain = plain
        self._clock = clock
        self.began = clock()
        self._lock = threading.Lock()
        self._counts: dict[int | None, tuple[int, int]] = {}
        self._steps: dict[int | None, str] = {}
        self._pending: dict[int, Node] = {}
        self._marks: deque[tuple[float, int]] = deque()
        self._room = LONGEST_BAR  # never grows: a bar should not jump

    def bytes(self, done: int, total: int) -> None:
        """Take the bytes done so far and in total."""
        self._count(None, done, total)

    def node_bytes(self, node: Node, done: int, total: int) -> None:
        """Take the bytes done so far for one node."""
        self._count(node.id, done, total)

    def _count(self, key: int | None, done: int, total: int) -> None:
        with self._lock:
            if not self._marks:
                self._marks.append((self._clock(), 0))
            self._counts[key] = (done, total)

    def step(self, node: Node | None, words: str) -> None:
        """Take what a node (None: this machine) is doing."""
        with self._lock:
            self._steps[None if node is None else node.id] = clean(words)[:LONGEST_STEP]

    @contextlib.contextmanager
    def waiting(self, nodes: Sequence[Node]) -> Iterator[Callable[[Node], None]]:
        """Yield the callback for a node that has answered; until then the operation is waiting for it."""
        before = self._pending
        with self._lock:
            self._pending = {node.id: node for node in nodes}
            self._steps = {}
        try:
            yield self._answered
        finally:
            with self._lock:
                self._pending = before

    def _answered(self, node: Node) -> None:
        with self._lock:
            self._pending.pop(node.id, None)
            self._steps.pop(node.id, None)
            if node.id in self._counts:  # a node that failed has no rest to wait for
                total = self._counts[node.id][1]
                self._counts[node.id] = (total, total)

    def line(self, columns: int | None = None) -> str:
        """Return the line to show now; with a bar if it fits into `columns`."""
        with self._lock:
            done = sum(count for count, _ in self._counts.values())
            total = sum(count for _, count in self._counts.values())
            steps, pending = dict(self._steps), list(self._pending)
        if done >= total:
            return _joined([self.title, _doing(steps, pending), human_duration(self._clock() - self.began)])
        rate = self._rate(done)
        speed = f"{human_bytes(rate)}/s" if rate else ""
        left_s = (total - done) / rate if rate else 0.0
        left = f"{human_duration(math.ceil(left_s))} left" if 0.0 < left_s < MOST_LEFT_S else ""
        amounts = _joined([f"{human_bytes(done)} of {human_bytes(total)}", speed, left])
        self._room = min(self._room, (columns or 0) - len(f"{self.title}    {amounts} "))
        return _joined([self.title, _bar(done / total, self._room), amounts])

    def _rate(self, done: int) -> float:
        """Return the bytes per second of the last seconds, by the calls of this method."""
        now = self._clock()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_S:
            self._marks.popleft()
        began, before = self._marks[0]
        return max(0.0, (done - before) / (now - began)) if now > began else 0.0


def _joined(parts: Iterable[str]) -> str:
    return style.join("  ", [part for part in parts if part])


def _bar(share: float, width: int) -> str:
    """Return a bar; none if the width is too small for one."""
    if width < SHORTEST_BAR:
        return ""
    full = int(width * min(1.0, max(0.0, share)))
    return style.good("█" * full) + "░" * (width - full)


def _doing(steps: dict[int | None, str], pending: list[int]) -> str:
    """Return what the nodes are doing, those with the same step together, and which ones have not answered."""
    groups: dict[str, list[int]] = {}
    by_node: dict[int | None, str] = {**dict.fromkeys(pending, ""), **steps}
    for node, step in by_node.items():
        if node is not None:
            groups.setdefault(step, []).append(node)
    silent = nodeset(groups.pop("", []))
    words = [f"{nodeset(nodes)} {step}" for step, nodes in groups.items()]
    return ", ".join(filter(None, [steps.get(None, ""), *words, silent and f"waiting for {silent}"]))
