"""Following a run to its end, or until no node can report it."""

from __future__ import annotations

from clusterctl.config import from_values
from clusterctl.errors import UnreachableError
from clusterctl.inventory import build
from clusterctl.observe.follow import LOST_S, SILENT_S, News, _Endings

NODES = build(from_values({"HOSTS": ["a", "b", "c"]})).nodes


def endings_after(*news: News) -> _Endings:
    endings = _Endings()
    for one in news:
        endings.take(one)
    return endings


def lost(node: int) -> News:
    return News(NODES[node], ended={"node": {"state": "lost"}}, final=False)


def silent(node: int) -> News:
    return News(NODES[node], error=UnreachableError("it is refused", node=NODES[node].label))


def test_when_all_other_nodes_have_ended_silent_ones_are_waited_for_only_briefly() -> None:
    endings = endings_after(silent(0), lost(1), lost(2))
    assert not endings.only_silent_nodes_left(3, 100.0)
    assert not endings.only_silent_nodes_left(3, 100.0 + SILENT_S)
    assert endings.only_silent_nodes_left(3, 101.0 + SILENT_S)


def test_a_kept_run_goes_on_without_less_than_half_of_its_nodes_so_a_broken_connection_is_waited_out() -> None:
    endings = endings_after(silent(0), lost(1), silent(2))
    assert not endings.only_silent_nodes_left(3, 100.0, kept=True)
    assert not endings.only_silent_nodes_left(3, 1000.0, kept=True)
    two = endings_after(silent(0), lost(1))
    assert not two.only_silent_nodes_left(2, 100.0, kept=True)
    assert two.only_silent_nodes_left(2, 101.0 + SILENT_S, kept=True)


def test_a_kept_run_is_left_soon_once_most_of_its_nodes_are_lost() -> None:
    endings = endings_after(lost(1), lost(2))
    assert not endings.only_silent_nodes_left(3, 100.0, kept=True)
    assert endings.only_silent_nodes_left(3, 101.0 + LOST_S, kept=True)
    assert not endings.only_silent_nodes_left(3, 101.0 + LOST_S)
    one = endings_after(lost(1))
    assert not one.only_silent_nodes_left(3, 100.0, kept=True)
    assert not one.only_silent_nodes_left(3, 1000.0, kept=True)


def test_silent_nodes_are_waited_for_while_any_other_node_is_running() -> None:
    endings = endings_after(silent(0), lost(1))
    assert not endings.only_silent_nodes_left(3, 100.0)
    assert not endings.only_silent_nodes_left(3, 1000.0)
    alone = endings_after(silent(0), silent(1), silent(2))
    assert not alone.only_silent_nodes_left(3, 0.0)
    assert not alone.only_silent_nodes_left(3, 1000.0)


def test_a_node_that_is_back_restarts_the_wait() -> None:
    endings = endings_after(silent(0), lost(1), lost(2))
    assert not endings.only_silent_nodes_left(3, 100.0)
    endings.take(News(NODES[1], back=True))
    assert not endings.only_silent_nodes_left(3, 101.0 + SILENT_S)
    endings.take(lost(1))
    assert not endings.only_silent_nodes_left(3, 102.0 + SILENT_S)
    assert endings.only_silent_nodes_left(3, 103.0 + 2 * SILENT_S)
