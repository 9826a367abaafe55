"""Following a run to its end, or to where nobody will tell it."""

from __future__ import annotations

from clusterctl.config import from_values
from clusterctl.errors import UnreachableError
from clusterctl.inventory import build
from clusterctl.observe.follow import SILENT_S, News, _Endings

NODES = build(from_values({"HOSTS": ["a", "b", "c"]})).nodes


def told(*news: News) -> _Endings:
    known = _Endings()
    for one in news:
        known.take(one)
    return known


def lost(node: int) -> News:
    return News(NODES[node], ended={"node": {"state": "lost"}}, final=False)


def silent(node: int) -> News:
    return News(NODES[node], error=UnreachableError("it is refused", node=NODES[node].label))


def test_when_all_but_the_silent_have_ended_these_are_waited_for_no_longer_than_so_long() -> None:
    known = told(silent(0), lost(1), lost(2))
    assert not known.only_silent_nodes_left(3, 100.0)
    assert not known.only_silent_nodes_left(3, 100.0 + SILENT_S)
    assert known.only_silent_nodes_left(3, 101.0 + SILENT_S)


def test_silence_is_borne_as_long_as_anybody_goes_on() -> None:
    known = told(silent(0), lost(1))
    assert not known.only_silent_nodes_left(3, 100.0)
    assert not known.only_silent_nodes_left(3, 1000.0)
    alone = told(silent(0), silent(1), silent(2))
    assert not alone.only_silent_nodes_left(3, 0.0)
    assert not alone.only_silent_nodes_left(3, 1000.0)


def test_who_is_back_counts_anew() -> None:
    known = told(silent(0), lost(1), lost(2))
    assert not known.only_silent_nodes_left(3, 100.0)
    known.take(News(NODES[1], back=True))
    assert not known.only_silent_nodes_left(3, 101.0 + SILENT_S)
    known.take(lost(1))
    assert not known.only_silent_nodes_left(3, 102.0 + SILENT_S)
    assert known.only_silent_nodes_left(3, 103.0 + 2 * SILENT_S)
