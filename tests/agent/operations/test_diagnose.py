"""A node's answer to `why`, including which lines of a process's log were not written by its program."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.operations.diagnose import Printed

PASS, SAVED = "pass 0: all well", "pserver 1: stored"
LINES = [[1.0, "mine"], [2.0, PASS], [3.0, SAVED], [4.0, "clusterctl: a remark"]]


def printed(*events: dict[str, Any]) -> Printed:
    lines = Printed()
    for event in events:
        lines.take(event)
    return lines


def test_lines_of_clusterctl_are_identified_by_the_events_that_report_them() -> None:
    lines = printed(
        {"event": "pass", "role": "trainer", "rank": 1, "line": PASS},
        {"event": "saved", "role": "pserver", "rank": 1, "line": SAVED},
        {"event": "saved", "tag": "step-1", "complete": True},
        {"event": "log", "role": "trainer", "rank": 1, "line": "mine"},
    )
    assert lines.ours("trainer", 1, LINES) == {"ours": [1, 3]}
    assert lines.ours("pserver", 1, LINES) == {"ours": [2, 3]}
    assert lines.ours("trainer", 0, LINES) == {"ours": [3]}, "it printed nothing"


def test_no_lines_are_identified_if_events_of_an_older_version_do_not_report_them() -> None:
    lines = printed({"event": "pass", "role": "trainer", "rank": 1, "step": 9})
    assert lines.ours("trainer", 1, LINES) == {}
    assert lines.ours("trainer", 0, LINES) == {"ours": [3]}
