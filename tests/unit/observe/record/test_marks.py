"""What is told about a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.common.events import RunWarning
from clusterctl.observe.record.marks import by_our_clock, warning_text

MOVED = "node2 was lost: no message from it for 30 s; pserver2, trainer2 moved to node0"
STAYED = "node2 was lost: no message from it for 30 s; no process had to move"


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("warning", "text"),
    [
        ({"kind": "node_lost", "message": MOVED}, MOVED),
        ({"kind": "no_push", "message": MOVED, "t": 5.0}, MOVED),
        (
            {"kind": "node_lost", "message": MOVED, "t": 37904.0, "lost_s": 37.0},
            "node2 was lost at 01-01 10:31:07: no message from it for 30 s; "
            "at 01-01 10:31:44 pserver2, trainer2 moved to node0",
        ),
        (
            {"kind": "node_lost", "message": STAYED, "t": 37904.0, "lost_s": 37.0},
            "node2 was lost at 01-01 10:31:07: no message from it for 30 s; no process had to move",
        ),
    ],
)
def test_a_warning_about_a_lost_node_says_when(warning: RunWarning, text: str) -> None:
    assert warning_text(warning) == text


@pytest.mark.parametrize(("t", "lost_s"), [(1e300, 1.0), (5.0, "long"), (float("nan"), 0.0), (5.0, float("inf"))])
def test_nonsense_of_a_node_leaves_the_message(t: Any, lost_s: Any) -> None:
    assert warning_text({"kind": "node_lost", "message": MOVED, "t": t, "lost_s": lost_s}) == MOVED


@pytest.mark.usefixtures("in_utc")
def test_times_of_today_have_no_date() -> None:
    now = time.time()
    text = warning_text({"kind": "node_lost", "message": STAYED, "t": now, "lost_s": 0.0})
    assert text.startswith(f"node2 was lost at {time.strftime('%H:%M:%S', time.gmtime(now))}: ")


def test_warnings_are_shown_by_our_clock() -> None:
    warnings: list[RunWarning] = [{"kind": "a", "message": "b", "t": 5.0}, {"kind": "a", "message": "c"}]
    assert by_our_clock(warnings, 3.0) == [{"kind": "a", "message": "b", "t": 8.0}, warnings[1]]
