"""What an attached start shows while a run goes on: a display that redraws itself, or plain lines."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterctl.cli.chart import resample
from clusterctl.cli.console import Console, clean, fitting, human_count, human_time, percent, plural
from clusterctl.cluster.cluster import NONSENSE
from clusterctl.observe.follow import is_passing
from clusterctl.observe.run_view import PassNumbers, RunView

if TYPE_CHECKING:
    from rich.live import Live

    from clusterctl.observe.follow import LogLine, News

PROBLEM = re.compile(r"(?i)error|exception|traceback|warning|fatal|killed")
#: What the display wants of the logs: all that the first trainer says, short of a flood; of the others, trouble.
LINES_WANTED = {
    "budget": 20,
    "grep": PROBLEM.pattern,
    "speaker": {"role": "trainer", "rank": 0, "budget": 1000},
}
MOST_ROWS = 16
PLAIN_EVERY_S = 10.0
REDRAWS_PER_S = 4
BARS = "▁▂▃▄▅▆▇█"
HEADINGS = ("node", "host", "role", "rank", "state", "step", "loss", "samples/s", "compute", "wait", "wire")
DROPPED_FIRST = ("host", "wire", "compute", "node")  # when the terminal is narrow
NUMERIC = ("node", "rank", "step", "loss", "samples/s", "compute", "wait", "wire")
PassFormat = Callable[[PassNumbers], str]


def default_pass_line(numbers: PassNumbers) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in numbers.values.items())
    return f"pass {numbers.pass_}: {values}"


class Display:
    """Takes news and shows them. A context manager. `pass_line` words what all trainers logged in a pass."""

    def __init__(self, console: Console, view: RunView, title: str, pass_line: PassFormat = default_pass_line) -> None:
        self._console = console
        self._view = view
        self._title = title
        self._pass_line = pass_line
        self._started = time.monotonic()
        self._told = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self._console.live:
            from rich.live import Live

            self._live = Live(console=self._console.rich(), refresh_per_second=REDRAWS_PER_S, get_renderable=self._draw)
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
            with contextlib.suppress(*NONSENSE):  # of a process that says anything, or a node that lies
                self._event(event)
        for line in news.lines:
            if self._interesting(line):
                self._line(line)
        for role, rank, count in news.held:
            self.say(f"{role}{rank}@{news.node.label}  ({plural(count, 'line')} not shown: clusterctl logs has them)")
        if news.error is not None:
            self.say(f"{news.error}{'; trying again' if is_passing(news.error) else ''}")
        elif news.back:
            self.say(f"{news.node.label} is back")
        self._tick()

    def _event(self, event: dict[str, Any]) -> None:
        self._console.record(event)
        self._view.take(event)
        if event["event"] == "phase" and event["phase"] != "gathering":  # told already, with the reason
            self.say(f"{self._moment(event)} {self._phase_words(event)}")
        elif event["event"] == "saved" and event.get("complete") and not event.get("checkpoint"):
            self.say(f"{self._moment(event)} saved {event['tag']}")
        elif event["event"] == "log" and event.get("level") == "warning":
            self.say(f"{self._moment(event)} {event['message']}")
        elif event["event"] in ("restarting", "rolled_back"):
            self.say(f"{self._moment(event)} {_recovery_words(event)}")
        elif event["event"] == "stalled":
            self.say(f"{self._moment(event)} {event['role']}{event['rank']}@node{event['node']} {event['message']}")
        elif event["event"] == "standstill":
            self.say(f"{self._moment(event)} {event['message']}")
        elif event["event"] == "paused":
            self.say(f"{self._moment(event)} node{event['node']}: {event['message']}")
        elif event["event"] in ("suspect", "lost", "rejoined", "held"):
            self.say(f"{self._moment(event)} {_absence_words(event)}")
        for numbers in self._view.new_passes():
            self.say(f"{self._moment(event)} all trainers  {self._pass_line(numbers)}")

    @staticmethod
    def _moment(event: dict[str, Any]) -> str:
        return time.strftime("%H:%M:%S", time.localtime(event["t"]))

    def _phase_words(self, event: dict[str, Any]) -> str:
        servers = any(process.role == "pserver" for process in self._view.processes.values())
        words = {
            "pservers": "starting pservers",
            "trainers": "all pservers are ready; starting trainers" if servers else "starting trainers",
            "running": "all processes run",
            "finishing": "all trainers are done",
            "stopping": "stopping all processes",
        }
        return words.get(event["phase"], str(event["phase"]))

    def _interesting(self, line: LogLine) -> bool:
        """The first trainer speaks for all; the others only of trouble, which being ended at last is not."""
        if line.role != "trainer" and self._view.phase == "finishing":
            return False
        return (line.role == "trainer" and line.rank == 0) or PROBLEM.search(line.text) is not None

    def _line(self, line: LogLine) -> None:
        moment = time.strftime("%H:%M:%S", time.localtime(line.t))
        self.say(f"{moment} {line.role}{line.rank}@{line.node.label}  {clean(line.text.split(chr(13))[-1])}")

    def say(self, text: str) -> None:
        """A line above the display."""
        if self._console.quiet:
            return
        if self._live is not None:
            self._live.console.print(clean(text, keep_newlines=True), soft_wrap=True)
        else:
            self._console.say(text)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._live is None and now - self._told > PLAIN_EVERY_S:
            if self._told and self._view.step:
                self._console.say("  ".join(filter(None, self._headlines())))
            self._told = now

    def _headlines(self) -> tuple[str, str]:
        view = self._view
        elapsed = human_time(time.monotonic() - self._started)
        progress = f"pass {view.pass_}" if view.step else view.phase
        first = f"{self._title} · {progress} · {elapsed}"
        if view.loss is None:
            return first, ""
        trainers = [t.numbers for t in view.trainers if t.numbers.get("compute") is not None]
        shares = (
            "  ".join(
                f"{name} {percent(sum(t[name] for t in trainers) / len(trainers))}"
                for name in ("compute", "wait", "wire")
            )
            if trainers
            else ""
        )
        rate = human_count(view.samples_per_s)
        line = sparkline(view.curve, 24)
        return first, f"loss {view.loss:.3f} {line}  {rate} samples/s   step {human_count(view.step)}   {shares}"

    def _draw(self) -> Any:
        from rich.text import Text

        lines = [line for line in self._headlines() if line]
        lines += fitting(HEADINGS, self._rows(), NUMERIC, DROPPED_FIRST)
        hidden = len(self._view.trainers) - MOST_ROWS
        if hidden > 0:
            lines.append(f"({hidden} more trainers; clusterctl status shows all)")
        if self._view.ended is None:
            lines.append("Ctrl-C stops the job everywhere · d detaches")
        return Text("\n".join(map(clean, lines)), no_wrap=True, overflow="crop")

    def _rows(self) -> list[list[str]]:
        trainers = self._view.trainers
        slowest = _slowest(trainers)
        rows = []
        for process in trainers[:MOST_ROWS]:
            numbers = process.numbers
            loss = numbers.get("loss")
            rows.append(
                [
                    str(process.node.id),
                    process.node.where,
                    process.role,
                    str(process.rank),
                    process.state + (" (slowest)" if process is slowest else ""),
                    human_count(numbers.get("step")),
                    "-" if loss is None else f"{loss:.3f}",
                    human_count(numbers.get("samples_per_s")),
                    *(percent(numbers.get(name)) for name in ("compute", "wait", "wire")),
                ]
            )
        servers = [p for p in self._view.processes.values() if p.role == "pserver"]
        states = sorted({p.state for p in servers})
        if servers:
            rows.append(["", "", f"{len(servers)} pservers", "", "/".join(states), *[""] * 6])
        return rows


def _absence_words(event: dict[str, Any]) -> str:
    """Who has not been heard of, or again; what a node says of the lead, or of a process, names it."""
    message = event.get("message")
    if "role" in event:
        who, words = f"{event['role']}{event['rank']}@node{event['node']}", {"rejoined": "starts again", "held": ""}
        return " ".join(filter(None, (who, words.get(event["event"], "is left out:"), message)))
    if "lost_node" in event:
        return f"node{event['node']}: {message}"
    return f"node{event['node']} is {event['event']}" + (f": {message}" if message else "")


def _recovery_words(event: dict[str, Any]) -> str:
    """What happens so that the run can go on."""
    if event["event"] == "restarting":
        who = f"{event['role']}{event['rank']}@node{event['node']}"
        return f"{who} {event['message']}: starts again in {event['in_s']:g} s ({event['count']})"
    start = f"checkpoint {event['tag']} (step {event['step']:,})" if event["tag"] else "the beginning"
    if event["whole"]:
        return f"all processes go back to {start}"
    servers = [name for name in event["processes"] if name.startswith("pserver")]
    return f"{', '.join(servers)} begins again from {start}; trainers start again where they were"


def _slowest(trainers: list[Any]) -> Any:
    """The trainer that the others wait for, when there is a clear one."""
    waits = [t.numbers["wait"] for t in trainers if t.state == "running" and t.numbers.get("wait") is not None]
    if len(waits) < 2 or len(waits) < len(trainers) or max(waits) - min(waits) < 0.2:
        return None
    return min(trainers, key=lambda t: t.numbers["wait"])


def sparkline(points: list[tuple[int, float]], width: int) -> str:
    """The course of the points in at most `width` characters."""
    means = [y for _, y in resample(points, width)]
    if not means:
        return ""
    low = min(means)
    span = (max(means) - low) or 1.0
    return "".join(BARS[min(7, int(8 * (mean - low) / span))] for mean in means)
