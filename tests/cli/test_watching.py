"""When an attached start stops waiting for nodes that say nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.cli.commands import start
from clusterctl.errors import UnreachableError
from clusterctl.observe.follow import News

NODES: list[Any] = [SimpleNamespace(id=number, label=f"node{number}") for number in range(3)]
TICKS = 100  # seconds, by the clock of these tests
LOST = [News(NODES[0], error=UnreachableError("gone")), *(News(node, ended={"state": "lost"}) for node in NODES[1:])]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it takes a second."""
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=itertools.count().__next__))


def left_over(*news: News, ended: dict[str, str] | None = None) -> int:
    """How many of the ticks after these news were not waited for."""
    script: Iterator[News | None] = iter([*news, *[None] * TICKS])
    display: Any = SimpleNamespace(news=lambda one: None)
    view: Any = SimpleNamespace(ended=ended)
    start._watch(script, display, view, lambda: None, len(NODES))
    return len(list(script))


def test_it_ends_when_the_node_of_the_lead_is_gone_and_all_others_have_told_their_end() -> None:
    assert left_over(*LOST) > 0


def test_it_ends_when_the_lead_has_spoken_and_another_node_has_not() -> None:
    assert left_over(News(NODES[0], ended={"state": "failed"}), ended={"state": "failed"}) > 0


@pytest.mark.parametrize(
    "news",
    [
        pytest.param(LOST[:2], id="a-node-that-is-there-has-not-ended"),
        pytest.param([*LOST, News(NODES[0], back=True)], id="the-node-is-back"),
        pytest.param([News(node, error=UnreachableError("gone")) for node in NODES], id="this-machine-is-cut-off"),
    ],
)
def test_it_waits_as_long_as_it_takes(news: list[News]) -> None:
    assert left_over(*news) == 0
