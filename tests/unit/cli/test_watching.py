"""How long an attached start waits for the other nodes once the lead has reported the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.cli.attached import follow
from clusterctl.errors import UnreachableError
from clusterctl.observe.follow import News

NODES: list[Any] = [SimpleNamespace(id=number, label=f"node{number}") for number in range(3)]
TICKS = 100  # seconds, by the clock of these tests


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances one second per reading."""
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=itertools.count().__next__))


def left_over(*news: News, ended: dict[str, str] | None = None) -> int:
    """Return the number of ticks left when the watch stopped."""
    script: Iterator[News | None] = iter([*news, *[None] * TICKS])
    screen = SimpleNamespace(record=SimpleNamespace(ended=ended))
    display: Any = SimpleNamespace(news=lambda one: None, screen=screen)
    log_feed: Any = SimpleNamespace(take=lambda one: None)  # no key is pressed
    follow._watch(script, display, list, log_feed)
    return len(list(script))


def test_watching_ends_when_the_lead_has_reported_the_end_and_another_node_has_not() -> None:
    assert left_over(News(NODES[0], ended={"state": "failed"}), ended={"state": "failed"}) > 0


def test_watching_waits_for_the_lead_indefinitely() -> None:
    assert left_over(*(News(node, error=UnreachableError("gone")) for node in NODES)) == 0
