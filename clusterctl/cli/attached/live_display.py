"""The output of an attached start during a run: a display that redraws itself, or plain lines."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.cli import style
from clusterctl.cli.console import Console, plural
from clusterctl.cli.screen.screen import Screen
from clusterctl.cli.tracebacks import PATTERN, TracebackFolder
from clusterctl.cluster import NONSENSE
from clusterctl.common.requests import FollowSelection
from clusterctl.common.run_state import Event
from clusterctl.escape import clean
from clusterctl.observe.follow import News, OutputLine, is_passing
from clusterctl.observe.record.live import LiveRecord, PassNumbers
from clusterctl.observe.record.marks import mark_of

if TYPE_CHECKING:
    from clusterctl.cli.screen.rich_display import RichDisplay

PROBLEM = re.compile(rf"(?i)error|exception|traceback|warning|fatal|killed|{PATTERN}")
#: Log lines that the display asks for: all of the first trainer, up to a limit, and problems of the others.
LINES_WANTED: FollowSelection = {
    "budget": 20,
    "grep": PROBLEM.pattern,
    "speaker": {"role": "trainer", "rank": 0, "budget": 1000},
}
PLAIN_EVERY_S = 10.0
HINT = "Ctrl-C stops the job everywhere · d detaches"
WARNINGS = (
    "restarting",
    "rolled_back",
    "stalled",
    "standstill",
    "paused",
    "cut_dropped",
    "state_lost",
    "warned",
)
#: Events of which the display shows the mark.
SHOWN = ("phase", "saved", "copying", "log", *WARNINGS, "suspect", "lost", "rejoined", "held", "resumed_by")
PassFormat = Callable[[PassNumbers], str]


def default_pass_line(numbers: PassNumbers) -> str:
    values = ", ".join(f"{clean(name)} {value:.4g}" for name, value in numbers.values.items())
    return f"pass {numbers.pass_}: {values}"


class Display:
    """Shows the news of a run: a screen below the lines that scroll. A context manager.

    `pass_line` formats the numbers all trainers logged in a pass.
    """

    def __init__(
        self, console: Console, view: LiveRecord, title: str, pass_line: PassFormat = default_pass_line
    ) -> None:
        self.screen = Screen(view, title, HINT)
        self._console = console
        self._view = view
        self._pass_line = pass_line
        self._last_plain = 0.0
        self._tracebacks: dict[tuple[str, int], TracebackFolder] = {}
        self._live: RichDisplay | None = None

    def __enter__(self) -> Display:
        if self._console.live:
            from clusterctl.cli.screen.rich_display import RichDisplay

            self._live = RichDisplay(self._console, self._lines, own_screen=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def news(self, news: News | None) -> None:
        if news is None:
            self._tick()
            return
        for event in news.events:
            with contextlib.suppress(*NONSENSE):  # a process or a node may send malformed events
                self._event(event)
        for line in news.lines:
            self._line(line)
        for role, rank, count in news.held:
            self.say(f"{role}{rank}@{news.node.label}  ({plural(count, 'line')} not shown; see clusterctl logs)")
        if news.error is not None:
            self.say(f"{news.error}{'; retrying' if is_passing(news.error) else ''}")
        elif news.back:
            self.say(f"{news.node.label} is back")
        self._tick()

    def _event(self, event: Event) -> None:
        self._console.record(event)
        self._view.take(event)
        if event["event"] in SHOWN:
            self._show(event)
        for numbers in self._view.new_passes():
            self.say(f"{self._moment(event)} all trainers  {self._pass_line(numbers)}")

    @staticmethod
    def _moment(event: Event) -> str:
        return time.strftime("%H:%M:%S", time.localtime(event["t"]))

    def _show(self, event: Event) -> None:
        mark = mark_of(event, event["t"], has_pservers=self._view.has_pservers)
        if mark is None or event.get("checkpoint") or event.get("level") == "error":
            return
        if mark.kind == "log":
            self.output(style.warning(f"{self._moment(event)} {mark.text}"))
        elif mark.kind in WARNINGS:
            self.say(style.warning(f"{self._moment(event)} {mark.line}"))
        else:
            self.say(style.state(mark.kind, f"{self._moment(event)} {mark.line}"))

    def _line(self, line: OutputLine) -> None:
        """Show every line of the first trainer and problems of others, until those are stopped at the end."""
        text: str | None = line.text
        if line.role != "trainer" or line.rank != 0:
            if PROBLEM.search(line.text) is None or (line.role != "trainer" and self._view.phase == "finishing"):
                return
            text = self._tracebacks.setdefault((line.role, line.rank), TracebackFolder()).take(line.text)
        if text is not None:
            moment = time.strftime("%H:%M:%S", time.localtime(line.t))
            process = style.process(line.role, f"{line.role}{line.rank}@{line.node.label}")
            self.output(f"{moment} " + process + f"  {clean(text.split(chr(13))[-1])}")

    def say(self, text: str) -> None:
        """Print a line of ours above the display."""
        self.output(self._console.pasteable(text))

    def output(self, text: str) -> None:
        """Print a line of a program above the display."""
        if self._console.quiet:
            return
        if self._live is not None:
            self._live.print(text)
        else:
            self._console.output(text)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._live is None and now - self._last_plain > PLAIN_EVERY_S:
            if self._last_plain and self._view.step:
                self._console.say(self.screen.summary())
            self._last_plain = now

    def _lines(self, width: int, height: int) -> list[str]:
        return self.screen.lines(width, height - max(2, height // 3))
