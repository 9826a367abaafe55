"""The lines from before a follow began, of several nodes, in time order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cluster import Cluster
from clusterctl.config import from_values
from clusterctl.errors import UnreachableError
from clusterctl.inventory import build
from clusterctl.observe.follow import News, OutputLine
from clusterctl.observe.in_order import PATIENCE_S, Backlog, OrderedFollower
from support.processes import wait_until

SETTINGS = from_values({"HOSTS": ["a", "b", "c"]})
INVENTORY = build(SETTINGS)
NODES = INVENTORY.nodes


def lines(node: int, *times: float) -> News:
    return News(NODES[node], lines=tuple(OutputLine(t, NODES[node], "trainer", node, "x") for t in times))


def caught_up(node: int) -> News:
    return News(NODES[node], caught_up=True)


def silent(node: int) -> News:
    return News(NODES[node], error=UnreachableError("it is refused", node=NODES[node].label))


def times(backlog: Backlog, now: float = 0.0) -> list[float]:
    return [line.t for line in backlog.lines(now)]


def backlog_of(*news: News) -> Backlog:
    backlog = Backlog([node.id for node in NODES], 0.0)
    for one in news:
        backlog.take(one, 0.0)
    return backlog


def test_lines_wait_for_nodes_that_may_have_older_ones() -> None:
    backlog = backlog_of(lines(0, 1, 5), lines(1, 2, 3))
    assert times(backlog) == []
    backlog.take(lines(2, 4, 6), 0.0)
    assert times(backlog) == [1, 2, 3]
    backlog.take(caught_up(1), 0.0)
    assert times(backlog) == [4, 5]
    assert not backlog.over


def test_lines_of_a_node_that_has_caught_up_join_the_merge_but_are_not_waited_for() -> None:
    backlog = backlog_of(caught_up(0), caught_up(1), lines(1, 90), lines(2, 1, 2))
    assert times(backlog) == [1, 2]
    backlog.take(lines(2, 3), 0.0)
    assert times(backlog) == [3]
    backlog.take(caught_up(2), 0.0)
    assert times(backlog) == [90]
    assert backlog.over


def test_a_silent_node_is_waited_for_only_briefly() -> None:
    backlog = backlog_of(lines(0, 1, 5), lines(1, 2, 3))
    assert times(backlog, PATIENCE_S) == []
    assert times(backlog, PATIENCE_S + 0.1) == [1, 2, 3]
    backlog.take(caught_up(1), PATIENCE_S + 0.2)
    backlog.take(lines(2, 4), PATIENCE_S + 0.2)
    assert times(backlog, PATIENCE_S + 0.2) == [4, 5]
    assert times(backlog, 2 * PATIENCE_S + 0.3) == []
    assert backlog.over


def test_a_node_that_cannot_be_reached_is_not_waited_for() -> None:
    backlog = backlog_of(lines(0, 1), caught_up(0), silent(1), News(NODES[2], ended={"node": {"state": "failed"}}))
    assert times(backlog) == [1]
    assert backlog.over


@given(st.data())
def test_lines_of_nodes_that_deliver_in_any_order_come_in_time_order(data: st.DataObject) -> None:
    moments = [sorted(data.draw(st.lists(st.integers(0, 50)))) for _ in NODES]
    news: list[list[News]] = []
    for node, all_times in enumerate(moments):
        cut = data.draw(st.integers(0, len(all_times)))
        parts = [part for part in (all_times[:cut], all_times[cut:]) if part]
        news.append([*(lines(node, *part) for part in parts), caught_up(node)])
    backlog, seen = backlog_of(), list[float]()
    while any(news):
        backlog.take(data.draw(st.sampled_from([queue for queue in news if queue])).pop(0), 0.0)
        seen += times(backlog)
    assert seen == sorted(t for all_times in moments for t in all_times)
    assert backlog.over


class Played(OrderedFollower):
    """A follower whose nodes deliver the given news."""

    def __init__(self, news: dict[int, list[News]], **options: Any) -> None:
        self.news, self.put = news, dict.fromkeys(news, 0)
        cluster = Cluster(SETTINGS, INVENTORY, NODES)
        super().__init__(cluster, [NODES[node] for node in news], "JOB20261121-081530", None, {}, **options)

    def _listen(self, node: Any) -> None:
        for one in (*self.news[node.id], News(node, ended={"node": {"state": "succeeded"}})):
            self._put(one)
            self.put[node.id] += 1


def lines_in_order(follower: Played) -> Iterator[tuple[float, bool]]:
    for news in follower:
        for line in news.lines if news is not None else ():
            yield line.t, news.in_order


def test_following_yields_the_past_in_order_and_then_lines_as_they_arrive() -> None:
    news = {node: [lines(node, node, node + 10), lines(node, node + 20), caught_up(node)] for node in range(3)}
    with Played(news) as follower:
        assert list(lines_in_order(follower)) == [(t, True) for n in (0, 10, 20) for t in (n, n + 1, n + 2)]
    with Played({0: [caught_up(0), *(lines(0, t) for t in (5, 3, 4))]}) as follower:
        assert [t for t, _ in lines_in_order(follower)] == [5, 3, 4]


def test_a_node_that_has_not_answered_lately_is_not_waited_for() -> None:
    class Silent(Played):
        def _listen(self, node: Any) -> None:
            if node.id == 0:
                super()._listen(node)

    with Silent({0: [lines(0, 1), caught_up(0)], 1: []}, silent=[NODES[1]]) as follower:
        assert next(iter(lines_in_order(follower))) == (1, True)


def test_a_node_delivers_no_faster_than_its_lines_are_shown() -> None:
    """Otherwise a node that is waited for would make the memory fill with the lines of others."""
    go = threading.Event()

    class Slow(Played):
        def _listen(self, node: Any) -> None:
            if node.id == 1:
                go.wait(180)
            super()._listen(node)

    with Slow({0: [*(lines(0, t) for t in range(50)), caught_up(0)], 1: [lines(1, 7.5), caught_up(1)]}) as follower:
        news = iter(follower)
        assert wait_until(lambda: next(news) is None and follower.put[0] > 0)
        assert follower.put[0] == 1
        go.set()
        seen = [line.t for one in news if one is not None for line in one.lines]
        assert seen == sorted([*range(50), 7.5])
