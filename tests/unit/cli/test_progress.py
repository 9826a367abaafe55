"""The line about an operation under way: what it says, when it appears, and that it is erased."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from clusterctl.cli import invocation as invocations
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.progress import Operation, ProgressLine
from clusterctl.cli.progress.line import ERASE
from clusterctl.cli.style import render
from clusterctl.config import from_values
from clusterctl.inventory import build
from support.terminal import Shown, run_on_terminal

MB = 1_000_000
NODES = build(from_values({"HOSTS": [f"host{number}" for number in range(4)]})).nodes


class Clock:
    """A clock that stands still until it is told the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# What it says.


def test_bytes_have_a_bar_a_rate_and_the_time_left(clock: Clock) -> None:
    operation = Operation("hashing", clock=clock)
    operation.bytes(0, 400 * MB)
    clock.now = 2.0
    operation.bytes(100 * MB, 400 * MB)
    assert operation.line(100) == "hashing  ██████░░░░░░░░░░░░░░░░░░  100 MB of 400 MB  50.0 MB/s  6 s left"


def test_the_bar_gives_way_on_a_narrow_terminal_and_in_plain_text(clock: Clock) -> None:
    operation = Operation("hashing", clock=clock)
    operation.bytes(0, 400 * MB)
    clock.now = 2.0
    operation.bytes(100 * MB, 400 * MB)
    words = "100 MB of 400 MB  50.0 MB/s  6 s left"
    assert operation.line(60) == f"hashing  ██░░░░░░░░░  {words}"
    assert operation.line(50) == f"hashing  {words}"
    assert operation.line() == f"hashing  {words}"


def test_the_rate_is_that_of_the_last_seconds(clock: Clock) -> None:
    operation = Operation("", clock=clock)
    for second in range(40):
        clock.now = float(second)
        operation.bytes(second * MB if second < 20 else 20 * MB + (second - 20) * 10 * MB, 1000 * MB)
        line = operation.line()
    assert "  10.0 MB/s  " in line


def test_the_bytes_of_all_nodes_are_added(clock: Clock) -> None:
    operation = Operation("sending", clock=clock)
    for node in NODES:
        operation.node_bytes(node, 5 * MB, 10 * MB)
    assert operation.line() == "sending  20.0 MB of 40.0 MB"


def test_a_node_that_failed_is_not_waited_for(clock: Clock) -> None:
    operation = Operation("sending", clock=clock)
    with operation.waiting(NODES) as answered:
        for node in NODES:
            operation.node_bytes(node, 0, 10 * MB)
        answered(NODES[0])
        assert operation.line() == "sending  10.0 MB of 40.0 MB"
        for node in NODES[1:3]:
            operation.node_bytes(node, 10 * MB, 10 * MB)
            answered(node)
        operation.node_bytes(NODES[3], 10 * MB, 10 * MB)
        clock.now = 7.0
        assert operation.line() == "sending  waiting for node3  7 s"


def test_silent_nodes_are_named(clock: Clock) -> None:
    operation = Operation("", clock=clock)
    with operation.waiting(NODES) as answered:
        answered(NODES[1])
        clock.now = 130.0
        assert operation.line() == "waiting for node[0,2,3]  2 min 10 s"
    assert operation.line() == "2 min 10 s"


def test_nodes_with_the_same_step_are_named_together(clock: Clock) -> None:
    operation = Operation("setting up", clock=clock)
    with operation.waiting(NODES) as answered:
        for node in NODES[:3]:
            operation.step(node, "installing numpy")
        operation.step(NODES[1], "installing pyzmq")
        assert operation.line() == (
            "setting up  node[0,2] installing numpy, node1 installing pyzmq, waiting for node3  0 s"
        )
        answered(NODES[1])
        operation.step(None, "fetching 2 packages to this machine")
        assert operation.line().startswith("setting up  fetching 2 packages to this machine, node[0,2] installing")


def test_words_of_a_node_are_harmless_and_short(clock: Clock) -> None:
    operation = Operation("setting up", clock=clock)
    with operation.waiting(NODES[:1]):
        operation.step(NODES[0], "installing \x1b[32m\r\n" + 1000 * "x")
        line = render(operation.line(100), colour=True)
    assert "\x1b" not in line
    assert len(line) < 100


# When it appears.


@pytest.fixture(autouse=True)
def only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is drawn when a test calls `update`, not also by its thread, four times a second of the real time."""
    monkeypatch.setattr("clusterctl.cli.progress.line.TICK_S", 1e6)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "live", True)


def progress(clock: Clock, **options: bool) -> tuple[Console, ProgressLine]:
    console = Console(GlobalOptions(**options))
    return console, ProgressLine(console, clock=clock)


@pytest.mark.usefixtures("live")
def test_a_quick_operation_shows_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = progress(clock)
    with line.operation("quick"):
        clock.now = 0.9
        line.update()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("live")
def test_the_line_appears_after_a_second_and_is_erased(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    console, line = progress(clock)
    with line.operation("slow"):
        clock.now = 1.0
        line.update()
        assert capsys.readouterr().out.endswith(f"{ERASE}slow  1 s")
        console.say("above")
        assert capsys.readouterr().out.endswith(f"{ERASE}above\n{ERASE}slow  1 s")
    assert capsys.readouterr().out == ERASE
    console.say("after")
    assert capsys.readouterr().out == "after\n"


@pytest.mark.usefixtures("live")
def test_the_line_is_erased_if_the_operation_fails(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = progress(clock)

    def interrupted() -> None:
        with line.operation("slow"):
            clock.now = 1.0
            line.update()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out.endswith(ERASE)
    assert not line.is_drawn


@pytest.mark.usefixtures("live")
def test_nothing_is_drawn_while_the_user_is_prompted(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = progress(clock)
    with line.operation("slow"):
        clock.now = 1.0
        line.update()
        with line.hidden():
            capsys.readouterr()
            line._draw()
            assert capsys.readouterr().out == ""
        assert capsys.readouterr().out.endswith("slow  1 s")


@pytest.mark.usefixtures("live")
def test_a_watch_inside_an_operation_adds_to_it(clock: Clock) -> None:
    _, line = progress(clock)
    with line.operation("starting") as operation, line.watch(NODES[:2]) as answered:
        answered(NODES[0])
        assert operation.line() == "starting  waiting for node1  0 s"


def test_without_a_terminal_there_is_a_plain_line_every_ten_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, line = progress(clock)
    with line.operation("hashing"):
        for second in range(1, 26):
            clock.now = float(second)
            line.update()
    assert capsys.readouterr() == ("", "hashing  10 s\nhashing  20 s\n")


@pytest.mark.parametrize("options", [{"json": True}, {"quiet": True}], ids=["json", "quiet"])
def test_json_and_quiet_have_no_progress(
    options: dict[str, bool], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, line = progress(clock, **options)
    with line.operation("hashing"):
        clock.now = 60.0
        line.update()
    assert capsys.readouterr() == ("", "")


def test_the_output_of_a_pipe_is_that_of_the_commands_alone(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = progress(clock)
    with line.operation("", plain=False):
        clock.now = 60.0
        line.update()
    assert capsys.readouterr() == ("", "")


# On a terminal.

WORKS = """
import threading
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
from clusterctl.cli.progress import ProgressLine

console = Console(GlobalOptions())
line = ProgressLine(console, appears_s=0.0)
with line.operation("working") as operation:
    operation.bytes(1, 2)
    while console.live and not line.is_drawn:
        threading.Event().wait(0.01)
    console.say("above")
console.say("done")
"""


def works(columns: int = 80, **environment: str) -> Shown:
    return run_on_terminal((sys.executable, "-c", WORKS), environment, columns=columns)


def test_a_terminal_shows_the_line_and_keeps_only_what_was_printed() -> None:
    result = works()
    assert result.code == 0
    assert "working  \x1b[32m████████████\x1b[0m░░░░░░░░░░░░  1 B of 2 B" in result.text
    assert left_on(result.text) == ["above", "done", ""]


def test_no_color_keeps_the_line() -> None:
    result = works(NO_COLOR="1")
    assert "working  ████████████░░░░░░░░░░░░  1 B of 2 B" in result.text
    assert "\x1b[32m" not in result.text
    assert left_on(result.text) == ["above", "done", ""]


def test_a_dumb_terminal_has_plain_lines() -> None:
    assert works(TERM="dumb").text == "above\ndone\n"


def test_the_line_never_wraps() -> None:
    result = works(columns=20)
    assert "working  1 B of 2 B" in result.text
    assert left_on(works(columns=12).text) == ["above", "done", ""]
    assert "working  1 B" not in works(columns=12).text


def left_on(text: str) -> list[str]:
    """Return the lines that are left on the terminal."""
    return [line.rpartition(ERASE)[2] for line in text.split("\n")]


def test_counts_of_any_size_can_be_shown(clock: Clock) -> None:
    operation: Any = Operation("", clock=clock)
    operation.bytes(1, 1 << 62)
    clock.now = 1.0
    assert operation.line(100).endswith("░░░░░░░░░░░░░░░░░░░░░░░░  1 B of 4611686018 GB  1 B/s")


@pytest.mark.usefixtures("live")
def test_a_prompt_for_a_secret_is_on_a_line_of_its_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invocation = Invocation(GlobalOptions(), None, Console(GlobalOptions()))
    invocation.progress = line = ProgressLine(invocation.console, clock=clock)
    monkeypatch.setattr(invocations, "ask_terminal", lambda prompt, stop: f"{prompt} {line.is_drawn}")
    with line.operation("waiting"):
        clock.now = 1.0
        line.update()
        assert invocation._ask("Password:", threading.Event()) == "Password: False"
        assert line.is_drawn
