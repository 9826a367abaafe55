"""The lines that `logs` prints: labelled, coloured by process on a terminal, and folded."""

from __future__ import annotations

import json
import sys

import pytest

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.commands.logs import FoldingPrinter, LinePrinter
from clusterctl.cli.console import Console
from clusterctl.cluster import Cluster
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.observe.follow import OutputLine

SETTINGS = from_values({"HOSTS": ["a", "b", "c"]})
NODES = build(SETTINGS).nodes
CLUSTER = Cluster(SETTINGS, build(SETTINGS), NODES)


def line(rank: int, text: str, t: float = 1.0, role: str = "trainer") -> OutputLine:
    return OutputLine(t, NODES[rank], role, rank, text)


def words(out: str) -> list[str]:
    """Return the lines without their times."""
    return [one.partition(" ")[2] for one in out.splitlines()]


@pytest.mark.parametrize(
    ("environment", "is_terminal", "has_colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
    ],
)
def test_processes_have_colours_where_the_terminal_and_the_user_want_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    is_terminal: bool,
    has_colour: bool,
) -> None:
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    with LinePrinter(Console(GlobalOptions()), CLUSTER) as printer:
        for rank in (0, 1):
            printer.line(line(rank, "\x1b[31mred"), in_order=True)
    out = capsys.readouterr().out
    assert [one.count("\x1b[") for one in out.splitlines()] == [2 * has_colour] * 2
    assert out.count("\u241b[31mred") == 2
    if not has_colour:
        assert words(out) == [f"trainer{rank}@node{rank}  \u241b[31mred" for rank in (0, 1)]


def test_parts_of_a_line_that_a_terminal_would_overwrite_are_shown_below_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LinePrinter(Console(GlobalOptions()), CLUSTER) as printer:
        for text in ("\r10%\r20%", "", "done\r"):
            printer.line(line(0, text), in_order=True)
    assert [one[len("trainer0@node0  ") :] for one in words(capsys.readouterr().out)] == ["10%", "20%", "", "done"]


def test_folded_lines_name_the_ranks_and_other_lines_look_as_usual(capsys: pytest.CaptureFixture[str]) -> None:
    with FoldingPrinter(Console(GlobalOptions()), CLUSTER, {"trainer": 3, "pserver": 1}) as printer:
        for one in (line(0, "a"), line(1, "a"), line(2, "a"), line(2, "b"), line(0, "c", role="pserver")):
            printer.line(one, in_order=True)
    assert words(capsys.readouterr().out) == [
        "trainers 0-2:   a",
        "trainer2@node2  b",
        "pserver0@node0  c",
    ]


def test_lines_held_back_are_shown_once_the_past_is_over_and_when_following_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FoldingPrinter(Console(GlobalOptions()), CLUSTER, {"trainer": 3}) as printer:
        printer.line(line(0, "past"), in_order=True)
        assert capsys.readouterr().out == ""
        printer.line(line(1, "new", 2.0), in_order=False)
        assert words(capsys.readouterr().out) == ["trainer0@node0  past"]
        printer.tick()
        assert capsys.readouterr().out == ""
    assert words(capsys.readouterr().out) == ["trainer1@node1  new"]


def test_json_has_one_object_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(GlobalOptions(json=True))
    console.stream()
    LinePrinter(console, CLUSTER).line(line(2, "\x1b\r"), in_order=True)
    assert json.loads(capsys.readouterr().out) == {
        "schema": "clusterctl/1",
        **{"t": 1.0, "node": 2, "role": "trainer", "rank": 2, "line": "\x1b\r"},
    }
