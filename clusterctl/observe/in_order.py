"""Following with the past in order: lines from before the follow began come first, merged over the nodes by time."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from clusterctl.cluster import Cluster
from clusterctl.common.requests import FollowSelection
from clusterctl.inventory import Node
from clusterctl.observe.follow import TICK_S, Follower, News, OutputLine

PATIENCE_S = 5.0  # wait for a node's lines from before the follow began


class Backlog:
    """Merges the lines of nodes by time. Not thread-safe; `now` is a monotonic clock.

    It waits for a node that has not caught up, as the node's next line may be the oldest, but for no more than
    PATIENCE_S. Lines of other nodes, live ones too, join the merge as they come. It keeps the lines that it was given
    and has not returned.
    """

    def __init__(self, nodes: Iterable[int], now: float) -> None:
        self._awaited = dict.fromkeys(nodes, now)  # since when, if none of its lines is here
        self._behind = set(self._awaited)
        self._held: dict[int, deque[OutputLine]] = {}
        self._first: list[tuple[float, int]] = []  # the first held line of each node

    @property
    def over(self) -> bool:
        """True if all nodes have caught up or are late, and no line is held."""
        return not self._behind and not self._first

    def take(self, news: News, now: float) -> None:
        node = news.node.id
        if news.lines:
            held = self._held.setdefault(node, deque())
            if not held:
                heapq.heappush(self._first, (news.lines[0].t, node))
            held.extend(news.lines)
            self._awaited.pop(node, None)
        if news.caught_up or news.ended is not None or news.error is not None:
            self._give_up(node)

    def _give_up(self, node: int) -> None:
        self._behind.discard(node)
        self._awaited.pop(node, None)

    def lines(self, now: float) -> Iterator[OutputLine]:
        """Yield the lines that are next in time, until a node has to be waited for."""
        for node, since in list(self._awaited.items()):
            if now - since > PATIENCE_S:
                self._give_up(node)
        while self._first and not self._awaited:
            _, node = heapq.heappop(self._first)
            held = self._held[node]
            yield held.popleft()
            if held:
                heapq.heappush(self._first, (held[0].t, node))
            elif node in self._behind:
                self._awaited[node] = now

    def holds(self, node: int) -> bool:
        return bool(self._held.get(node))


class OrderedFollower(Follower):
    """A `Follower` that yields the lines from before the follow began in time order, as News that are `in_order`.

    Until all nodes have caught up, each node delivers only as fast as its lines are yielded: memory stays bounded.
    `silent` nodes, which have not answered lately, are not waited for.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[Node],
        job: str,
        run: str | None,
        wanted: FollowSelection,
        *,
        silent: Collection[Node] = (),
    ) -> None:
        super().__init__(cluster, nodes, job, run, wanted)
        self._awaited = [node.id for node in nodes if node not in silent]
        self._turns = {node.id: threading.Semaphore() for node in nodes}
        self._merged = threading.Event()

    def _put(self, news: News) -> None:
        if news.lines:
            turn = self._turns[news.node.id]
            while not (self._over.is_set() or self._merged.is_set() or turn.acquire(timeout=TICK_S)):
                pass
        super()._put(news)

    def __iter__(self) -> Iterator[News | None]:
        backlog = Backlog(self._awaited, time.monotonic())
        for news in super().__iter__():
            if self._merged.is_set():
                yield news
                continue
            if news is not None:
                backlog.take(news, time.monotonic())
            yield from self._merge(backlog, news)
            if backlog.over:
                self._merged.set()

    def _merge(self, backlog: Backlog, news: News | None) -> Iterator[News | None]:
        lines = tuple(backlog.lines(time.monotonic()))
        if lines:
            yield News(lines[0].node, lines=lines, in_order=True)
        for node in {line.node.id for line in lines}:
            if not backlog.holds(node):
                self._turns[node].release()
        yield news and replace(news, lines=())
