"""What a node answers to `why`: also which lines of a process's log are not its program's."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.operations.diagnose import Printed

PASS, SAVED = "pass 0: all well", "pserver 1: stored"
LINES = [[1.0, "mine"], [2.0, PASS], [3.0, SAVED], [4.0, "clusterctl: a remark"]]


def printed(*events: dict[str, Any]) -> Printed:
    found = Printed()
    for event in events:
        found.take(event)
    return found


def test_lines_of_clusterctl_are_told_by_the_events_that_report_them() -> None:
    found = printed(
        {"event": "pass", "role": "trainer", "rank": 1, "line": PASS},
        {"event": "saved", "role": "pserver", "rank": 1, "line": SAVED},
        {"event": "saved", "tag": "step-1", "complete": True},
        {"event": "log", "role": "trainer", "rank": 1, "line": "mine"},
    )
    assert found.ours("trainer", 1, LINES) == {"ours": [1, 3]}
    assert found.ours("pserver", 1, LINES) == {"ours": [2, 3]}
    assert found.ours("trainer", 0, LINES) == {"ours": [3]}, "it printed nothing"


def test_nothing_is_told_where_events_of_an_older_version_do_not_report_their_lines() -> None:
    found = printed({"event": "pass", "role": "trainer", "rank": 1, "step": 9})
    assert found.ours("trainer", 1, LINES) == {}
    assert found.ours("trainer", 0, LINES) == {"ours": [3]}
