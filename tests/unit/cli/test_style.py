"""Outcomes and processes have colours on a terminal; text of nodes cannot add any."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cli import style
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console, align
from clusterctl.errors import InterruptedRun, NodeError
from clusterctl.escape import clean
from support.terminal import Shown, run_on_terminal

RED, GREEN, YELLOW, MAGENTA, END = "\x1b[1;31m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[0m"


def shown(text: str) -> str:
    return style.render(text, colour=True, keep_newlines=True)


def test_outcomes_have_the_colours_of_their_kind() -> None:
    assert shown(style.state("succeeded")) == f"{GREEN}succeeded{END}"
    assert shown(style.state("failed")) == f"{RED}failed{END}"
    assert shown(style.warning("careful")) == f"{YELLOW}careful{END}"
    assert shown(style.process("pserver", "pserver0@node1")) == f"{MAGENTA}pserver0@node1{END}"
    assert shown(style.state("running")) == "running"
    assert shown(style.process(None, "x")) == "x"


def test_colours_survive_concatenation_and_joining() -> None:
    text = "a " + style.good("b") + " c"
    assert shown(text) == f"a {GREEN}b{END} c"
    assert shown(style.join(", ", [text, style.bad("d"), "e"])) == f"a {GREEN}b{END} c, {RED}d{END}, e"
    assert shown((style.bad("failed") + "  ").rstrip()) == f"{RED}failed{END}"


def test_other_code_sees_plain_strings() -> None:
    text = "a " + style.good("b")
    assert text == "a b"
    assert f"{text}!" == "a b!"
    assert json.dumps({"text": text}) == '{"text": "a b"}'
    assert type(f"{text}") is str


def test_a_colour_ends_at_each_line() -> None:
    assert shown(style.bad("one\ntwo")) == f"{RED}one{END}\n{RED}two{END}"


@given(st.text(), st.text(), st.text())
def test_text_of_a_node_adds_no_colour(before: str, inside: str, after: str) -> None:
    rendered = shown(before + style.bad(inside) + after)
    assert rendered.replace(RED, "").replace(END, "") == clean(before + inside + after, keep_newlines=True)
    assert rendered.count("\x1b") == 2 * len([line for line in clean(inside, keep_newlines=True).split("\n") if line])


def test_a_table_is_aligned_by_what_is_seen() -> None:
    lines = align(("state", "n"), [[style.state("failed"), "1"], [style.state("succeeded"), "22"], ["x", ""]])
    assert lines == ["state      n", "failed     1", "succeeded  22", "x"]
    assert shown(lines[1]) == f"{RED}failed{END}     1"


def test_hints_get_their_conf_and_keep_their_colours(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(GlobalOptions(conf="c.py"))
    text = console.pasteable(style.good("done") + "     next: clusterctl status")
    assert shown(text) == f"{GREEN}done{END}     next: clusterctl --conf c.py status"


@pytest.mark.parametrize(
    ("environment", "is_terminal", "expected"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
    ids=["terminal", "pipe", "dumb", "no-term", "no-color", "empty-no-color", "forced", "not-forced", "no-color-wins"],
)
def test_who_gets_colours(environment: Mapping[str, str], is_terminal: bool, expected: bool) -> None:
    assert style.wants_colour(environment, is_terminal=is_terminal) is expected


def test_nothing_changes_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(GlobalOptions())
    console.say(style.good("fine"))
    console.warn("careful")
    console.table(("state",), [[style.state("failed")]])
    console.error(NodeError("broke"))
    assert capsys.readouterr() == ("fine\nstate\nfailed\n", "careful\nbroke\n")


@pytest.mark.parametrize("options", [GlobalOptions(json=True), GlobalOptions(quiet=True)], ids=["json", "quiet"])
def test_json_and_quiet_are_unaffected(
    options: GlobalOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(options)
    console.say(style.good("fine"))
    console.warn("careful")
    console.error(NodeError("broke"))
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


def test_an_error_is_red_and_its_details_and_its_hint_are_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    Console(GlobalOptions()).error(NodeError("it broke \x1b[32m\n  detail\nmore", node="node1", hint="fix it"))
    assert capsys.readouterr().err == f"{RED}node1: it broke ␛[32m{END}\n  detail\n{RED}more{END}\n  fix it\n"


def test_an_interruption_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    Console(GlobalOptions()).error(InterruptedRun("interrupted"))
    assert capsys.readouterr().err == "interrupted\n"


# The program, on a terminal.


def failing(directory: Path, *, columns: int = 80, **environment: str) -> Shown:
    (directory / "conf.py").write_text("HOSTS = ['a']\n")
    argv = (sys.executable, "-m", "clusterctl", "--conf", str(directory / "conf.py"), "dispatch", str(directory / "x"))
    return run_on_terminal(argv, environment, columns=columns)


def test_an_error_is_red_on_a_terminal(tmp_path: Path) -> None:
    result = failing(tmp_path)
    assert result.code == 2
    assert f"{RED}the workspace " in result.text


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_lines_are_plain_on_request(environment: dict[str, str], tmp_path: Path) -> None:
    result = failing(tmp_path, **environment)
    assert result.code == 2
    assert "the workspace " in result.text
    assert "\x1b" not in result.text


IS_LIVE = """
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
print([Console(options).live for options in (GlobalOptions(), GlobalOptions(json=True), GlobalOptions(quiet=True))])
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)],
    ids=["usual", "NO_COLOR", "TERM=dumb"],
)
def test_no_color_keeps_the_live_view_and_a_dumb_terminal_has_none(environment: dict[str, str], expected: bool) -> None:
    result = run_on_terminal((sys.executable, "-c", IS_LIVE), environment)
    assert result.text == f"[{expected}, False, False]\n"
