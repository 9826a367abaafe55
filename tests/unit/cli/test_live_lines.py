"""The log lines that an attached start prints: all of the first trainer, and problems of the others."""

from __future__ import annotations

import pytest

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.attached.live_display import Display
from clusterctl.cli.console import Console
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.observe.follow import News, OutputLine
from clusterctl.observe.record.live import LiveRecord

NODES = build(from_values({"HOSTS": ["a", "b"]})).nodes
PROCESSES = (("trainer", 0), ("trainer", 1), ("pserver", 0), ("pserver", 1))


@pytest.mark.parametrize(
    ("text", "phase", "shown"),
    [
        ("step 1", "running", ["trainer0"]),
        ("disk error", "running", ["trainer0", "trainer1", "pserver0", "pserver1"]),
        ("disk error", "finishing", ["trainer0", "trainer1"]),  # servers are stopped by then
    ],
)
def test_of_other_processes_only_problems_are_printed(
    text: str, phase: str, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    view = LiveRecord(NODES)
    view.take({"event": "phase", "t": 1.0, "node": 0, "phase": phase})
    with Display(Console(GlobalOptions()), view, "title") as display:
        for role, rank in PROCESSES:
            display.news(News(NODES[rank], lines=(OutputLine(1.0, NODES[rank], role, rank, text),)))
    printed = capsys.readouterr()
    lines = [line.split() for line in (printed.out + printed.err).splitlines() if text in line]
    assert [line[1].partition("@")[0] for line in lines] == shown
