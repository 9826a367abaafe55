"""The display and messages of an attached start that follows a run with made-up events."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console as RichConsole

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.attached.live_display import Display
from clusterctl.cli.console import Console
from clusterctl.cli.screen.rich_display import RichDisplay
from clusterctl.config.loader import from_values
from clusterctl.inventory import build
from clusterctl.observe.follow import News, OutputLine
from clusterctl.observe.record.live import LiveRecord
from contract.security.liars import EVIL, is_harmless

JUNK: list[Any] = [None, {}, EVIL, -1, float("nan"), 10**30, [EVIL]]
EVENTS: list[dict[str, Any]] = [
    {"event": "phase", "phase": "running", "cause": {"message": "m", "tail": ["t"]}},
    {"event": "spawned", "role": "trainer", "rank": 0},
    {"event": "ready", "role": "pserver", "rank": 0},
    {
        "event": "step",
        "role": "trainer",
        "rank": 0,
        "pass": 1,
        "step": 5,
        "loss": 0.5,
        "samples_per_s": 3.0,
        "wait": 0.1,
    },
    {"event": "step", "role": "pserver", "rank": 0, "awaits": [1], "awaited": 1, "waiting": 1, "awaits_s": 4.0},
    {"event": "usage", "role": "trainer", "rank": 0, "cpu": 0.5, "memory": 1},
    {"event": "log", "role": "trainer", "rank": 0, "pass": 1, "values": {"auc": 0.5}, "weight": 2},
    {"event": "log", "role": "trainer", "rank": 1, "pass": 1, "values": {"auc": 0.5}, "weight": -2},
    {"event": "log", "level": "warning", "message": "m"},
    {"event": "saved", "tag": "t", "complete": True, "step": 1},
    {"event": "copied", "tag": "t", "bytes": 1, "in_s": 1.0},
    {"event": "copying", "tag": "t", "limit_s": 60.0},
    {"event": "exited", "role": "trainer", "rank": 0, "exit_code": 1, "stopping": False},
    {"event": "restarting", "role": "trainer", "rank": 0, "message": "m", "in_s": 1.0, "count": "1 of 3"},
    {"event": "cut_dropped", "message": EVIL, "trainers": [1], "saves": ["model"]},
    {"event": "state_lost", "role": "trainer", "rank": 0, "message": EVIL},
    {"event": "rolled_back", "tag": "t", "step": 1, "whole": True, "processes": ["pserver0"]},
    {"event": "lost", "message": "m"},
    {"event": "ended", "state": "failed", "cause": None, "not_heard_of": []},
]


def drawn(display: Display) -> str:
    screen = io.StringIO()
    shown = RichDisplay(Console(GlobalOptions()), display._lines, own_screen=False)
    RichConsole(file=screen, width=200).print(shown._lines())
    return screen.getvalue()


@pytest.mark.parametrize("live", [True, False])
def test_the_display_of_a_run_is_harmless_whatever_its_events_contain(
    live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = from_values({"HOSTS": ["a", "b"]})
    nodes = build(settings).nodes
    for junk in JUNK:
        view = LiveRecord(nodes)
        with Display(Console(GlobalOptions()), view, "title") as display:
            for event in EVENTS:
                for key in event:
                    wrong = {"t": 1.7e9, "node": 1, **event, **({key: junk} if key != "event" else {"event": EVIL})}
                    display.news(News(nodes[1], events=(wrong,)))
                    assert not live or is_harmless(drawn(display)), wrong
                display.news(News(nodes[1], events=({"t": 1.7e9, "node": 1, **event},)))
            display.news(News(nodes[1], lines=(OutputLine(1.7e9, nodes[1], "trainer", 0, f"{EVIL}\r{EVIL}"),)))
        captured = capsys.readouterr()
        assert is_harmless(captured.out + captured.err), junk
        assert view.ended is not None  # the valid events in between were accepted
        assert view.processes["trainer", 0].figures["step"] == 5


def test_the_line_of_a_pass_is_one_line_whatever_the_metrics_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = build(from_values({"HOSTS": ["a"]})).nodes
    view = LiveRecord(nodes)
    events = (
        {"event": "spawned", "role": "trainer", "rank": 0},
        {"event": "log", "role": "trainer", "rank": 0, "pass": 0, "values": {"a\n12:00:00 saved pass-00009": 0.5}},
        {"event": "exited", "role": "trainer", "rank": 0, "exit_code": 0, "stopping": False},
    )
    with Display(Console(GlobalOptions()), view, "title") as display:
        for event in events:
            display.news(News(nodes[0], events=({"t": 1.7e9, "node": 0, **event},)))
    printed = capsys.readouterr()
    [line] = [line for line in (printed.out + printed.err).splitlines() if "pass-00009" in line]
    assert "all trainers  pass 0: a\u240a12:00:00 saved pass-00009 0.5" in line
