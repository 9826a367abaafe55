"""The output of an attached start during a run: a display that redraws itself, or plain lines."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterctl.cli.chart import resample
from clusterctl.cli.console import Console, clean, fitting, human_count, human_time, percent, plural
from clusterctl.cluster import NONSENSE
from clusterctl.observe.follow import is_passing
from clusterctl.observe.run_view import Event, PassNumbers, RunView

if TYPE_CHECKING:
    from rich.live import Live

    from clusterctl.observe.follow import LogLine, News

PROBLEM = re.compile(r"(?i)error|exception|traceback|warning|fatal|killed")
#: Log lines that the display asks for: all of the first trainer, up to a limit, and problems of the others.
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
STARTING = {"gathering": "starting", "pservers": "starting pservers", "trainers": "starting trainers"}
PassFormat = Callable[[PassNumbers], str]


def default_pass_line(numbers: PassNumbers) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in numbers.values.items())
    return f"pass {numbers.pass_}: {values}"


class Display:
    """Shows the news of a run. A context manager. `pass_line` formats the numbers all trainers logged in a pass."""

    def __init__(self, console: Console, view: RunView, title: str, pass_line: PassFormat = default_pass_line) -> None:
        self._console = console
        self._view = view
        self._title = title
        self._pass_line = pass_line
        self._started = time.monotonic()
        self._last_plain = 0.0
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
            with contextlib.suppress(*NONSENSE):  # a process or a node may send malformed events
                self._event(event)
        for line in news.lines:
            if self._interesting(line):
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
        if event["event"] == "phase" and event["phase"] != "gathering":  # reported already, with the reason
            self.say(f"{self._moment(event)} {self._phase_text(event)}")
        elif event["event"] == "saved" and event.get("complete") and not event.get("checkpoint"):
            self.say(f"{self._moment(event)} saved {event['tag']}")
        elif event["event"] == "copying":
            self.say(f"{self._moment(event)} copying {event['tag']} to other nodes, for up to {event['limit_s']:.0f} s")
        elif event["event"] == "log" and event.get("level") == "warning":
            self.output(f"{self._moment(event)} {event['message']}")
        elif event["event"] in ("restarting", "rolled_back"):
            self.say(f"{self._moment(event)} {_recovery_text(event)}")
        elif event["event"] == "stalled":
            self.say(f"{self._moment(event)} {event['role']}{event['rank']}@node{event['node']} {event['message']}")
        elif event["event"] == "standstill":
            self.say(f"{self._moment(event)} {event['message']}")
        elif event["event"] == "paused":
            self.say(f"{self._moment(event)} node{event['node']}: {event['message']}")
        elif event["event"] in ("suspect", "lost", "rejoined", "held"):
            self.say(f"{self._moment(event)} {_absence_text(event)}")
        for numbers in self._view.new_passes():
            self.say(f"{self._moment(event)} all trainers  {self._pass_line(numbers)}")

    @staticmethod
    def _moment(event: Event) -> str:
        return time.strftime("%H:%M:%S", time.localtime(event["t"]))

    def _phase_text(self, event: Event) -> str:
        has_pservers = any(process.role == "pserver" for process in self._view.processes.values())
        texts = {
            "pservers": "starting pservers",
            "trainers": "all pservers are ready; starting trainers" if has_pservers else "starting trainers",
            "running": "all processes are running",
            "finishing": "all trainers are done",
            "stopping": "stopping all processes",
        }
        return texts.get(event["phase"], str(event["phase"]))

    def _interesting(self, line: LogLine) -> bool:
        """True for every line of the first trainer and for problems of others, until those are stopped at the end."""
        if line.role != "trainer" and self._view.phase == "finishing":
            return False
        return (line.role == "trainer" and line.rank == 0) or PROBLEM.search(line.text) is not None

    def _line(self, line: LogLine) -> None:
        moment = time.strftime("%H:%M:%S", time.localtime(line.t))
        self.output(f"{moment} {line.role}{line.rank}@{line.node.label}  {clean(line.text.split(chr(13))[-1])}")

    def say(self, text: str) -> None:
        """Print a line of ours above the display."""
        self.output(self._console.pasteable(text))

    def output(self, text: str) -> None:
        """Print a line of a program above the display."""
        if self._console.quiet:
            return
        if self._live is not None:
            self._live.console.print(clean(text, keep_newlines=True), soft_wrap=True)
        else:
            self._console.output(text)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._live is None and now - self._last_plain > PLAIN_EVERY_S:
            if self._last_plain and self._view.step:
                self._console.say("  ".join(filter(None, self._headlines())))
            self._last_plain = now

    def _headlines(self) -> tuple[str, str]:
        view = self._view
        elapsed = human_time(time.monotonic() - self._started)
        progress = f"pass {view.pass_}" if view.step else STARTING.get(view.phase, view.phase)
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
            more = f"({plural(hidden, 'more trainer')}; clusterctl status shows all)"
            lines.append(self._console.pasteable(more))
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


def _absence_text(event: Event) -> str:
    """Describe a node or process that fell silent or came back; a node's message about another one names that one."""
    message = event.get("message")
    if "role" in event:
        process = f"{event['role']}{event['rank']}@node{event['node']}"
        verb = {"rejoined": "is restarting", "held": ""}.get(event["event"], "is left out:")
        return " ".join(filter(None, (process, verb, message)))
    if "lost_node" in event:
        return f"node{event['node']}: {message}"
    state = "has rejoined" if event["event"] == "rejoined" else f"is {event['event']}"
    return f"node{event['node']} {state}" + (f": {message}" if message else "")


def _recovery_text(event: Event) -> str:
    """Describe a restart or a rollback."""
    if event["event"] == "restarting":
        process = f"{event['role']}{event['rank']}@node{event['node']}"
        return f"{process} {event['message']}; restarting in {event['in_s']:g} s ({event['count']})"
    start = f"checkpoint {event['tag']} (step {event['step']:,})" if event["tag"] else "the beginning"
    if event["whole"]:
        return f"rolling back all processes to {start}"
    pservers = [name for name in event["processes"] if name.startswith("pserver")]
    return f"restarting {', '.join(pservers)} from {start}; trainers restart where they were"


def _slowest(trainers: list[Any]) -> Any:
    """Return the trainer that the others wait for, if there is a clear one."""
    waits = [t.numbers["wait"] for t in trainers if t.state == "running" and t.numbers.get("wait") is not None]
    if len(waits) < 2 or len(waits) < len(trainers) or max(waits) - min(waits) < 0.2:
        return None
    return min(trainers, key=lambda t: t.numbers["wait"])


def sparkline(points: list[tuple[int, float]], width: int) -> str:
    """Draw the curve of the points in at most `width` characters."""
    means = [y for _, y in resample(points, width)]
    if not means:
        return ""
    low = min(means)
    span = (max(means) - low) or 1.0
    return "".join(BARS[min(7, int(8 * (mean - low) / span))] for mean in means)
