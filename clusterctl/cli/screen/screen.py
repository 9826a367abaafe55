"""The live screen of a run: a headline, curves, and the processes, events or a log below. Pure."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from clusterctl.cli import style
from clusterctl.cli.chart import Point, resample, terminal_chart
from clusterctl.cli.console import fitting, human_count, human_duration, human_time, percent
from clusterctl.cli.screen.notes import note_lines
from clusterctl.cli.screen.table import (
    DROPPED_FIRST,
    HEADINGS,
    MOST_METRICS,
    NUMERIC,
    ORDERS,
    cells,
    metric_headings,
    metric_names,
    ordered,
    slowest,
)
from clusterctl.escape import clean
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.model import ProcessRecord, TimedLine

BARS = "▁▂▃▄▅▆▇█"
STARTING = {"gathering": "starting", "pservers": "starting pservers", "trainers": "starting trainers"}
HIGH = 32  # lines of a terminal that has room for charts
CHART_LINES = 6
SEPARATOR = " · "
MOST_NOTICES = 2
LOG_LINES = 500
LINE_CHARS = 4000  # of a line of a log
WARNINGS = (
    *("restarting", "rolled_back", "stalled", "standstill", "paused", "cut_dropped", "state_lost"),
    *("nan", "log", "suspect", "lost", "held", "warned"),
)


class Screen:
    """The state of what is shown of `record`, and its lines. `hint` says what the keys outside the screen do.

    `clock` is the time of day, by the lead's clock as far as it is known. `notices` are problems with nodes, by label.
    """

    def __init__(
        self,
        record: LiveRecord,
        title: str,
        hint: str,
        clock: Callable[[], float] = time.time,
        started_t: float | None = None,
    ) -> None:
        self.record = record
        self.notices: dict[str, str] = {}
        self.log: deque[TimedLine] = deque(maxlen=LOG_LINES)
        self._title = title
        self._hint = hint
        self._clock = clock
        self._started_t = clock() if started_t is None else started_t
        self._view = "processes"
        self._order = ORDERS[0]
        self._selected: ProcessRecord | None = None
        self._offset = 0
        self._page = 10

    @property
    def wanted_log(self) -> ProcessRecord | None:
        """The process whose log is to be shown; None while another view is."""
        rows = self._rows()
        return rows[self._place(rows)] if self._view == "log" and rows else None

    def press(self, key: str) -> bool:
        """Handle a key; return False if it means nothing here."""
        moves = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page, "home": -(10**6), "end": 10**6}
        if key in moves:
            self._move(moves[key])
        elif key in ("l", "e"):
            wanted = {"l": "log", "e": "events"}[key]
            self._show("processes" if self._view == wanted else wanted)
        elif key == "escape" and self._view != "processes":
            self._show("processes")
        elif key == "s" and self._view == "processes":
            self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
            self._selected = None
        else:
            return False
        return True

    def _show(self, view: str) -> None:
        rows = self._rows()
        self._selected = rows[self._place(rows)] if rows else None
        self._view, self._offset = view, 0
        self.log.clear()

    def _move(self, by: int) -> None:
        rows = self._rows()
        if self._view == "processes" and rows:
            self._selected = rows[min(max(self._place(rows) + by, 0), len(rows) - 1)]
        else:  # both end with the newest line
            self._offset = max(0, self._offset - by)

    def _place(self, rows: Sequence[ProcessRecord]) -> int:
        """Return the row of the selected process, which it keeps when the rows change places."""
        return next((at for at, process in enumerate(rows) if process is self._selected), 0)

    def _rows(self) -> list[ProcessRecord]:
        return ordered(list(self.record.processes.values()), self._order)

    def lines(self, width: int, height: int) -> list[str]:
        """Return at most `height` lines of at most `width` characters."""
        top = self._top(width, height)
        notes = note_lines(self.record.processes.values(), self.record.cut_dropped)
        notes += [f"warning: {one}" for one in self.record.warning_messages[-MOST_NOTICES:]]
        bottom = [style.warning(line) for line in (*notes, *list(self.notices.values())[-MOST_NOTICES:])]
        bottom += [self._keys(width)] if height > len(top) + 1 else []
        room = max(0, height - len(top) - len(bottom))
        self._page = max(1, room - 2)
        body = {"processes": self._table, "events": self._events, "log": self._log}[self._view](width, room)
        return [style.cut(line, width) for line in (*top, *body, *bottom)[:height]]

    def summary(self) -> str:
        """Return the state of the run in one line, for output that cannot be redrawn."""
        record = self.record
        loss = [f"loss {record.loss:.4g}"] if record.loss is not None else []
        rate = [f"{human_count(record.samples_per_s)} samples/s"] if record.samples_per_s else []
        return SEPARATOR.join([self._title, *self._progress(), *loss, *rate])

    def _top(self, width: int, height: int) -> list[str]:
        record = self.record
        first = self._headline(width)
        if record.loss is None and not record.samples_per_s:
            return [first]
        if height >= HIGH:
            return [first, *self._charts(width), *self._shares(width)]
        loss = "" if record.loss is None else f"loss {record.loss:.4g} {sparkline(record.curve, 20)}   "
        rate = f"{human_count(record.samples_per_s)} samples/s {sparkline(record.rates, 12)}"
        return [first, f"{loss}{rate}", *self._shares(width)]

    def _headline(self, width: int) -> str:
        """Return the first line. In a narrow terminal the step is left out, then the mode, the end of the title."""
        progress = self._progress()
        whole = [self._title, *progress]
        if len(SEPARATOR.join(whole[:-1])) > width:
            whole[0] = SEPARATOR.join(self._title.split(SEPARATOR)[:-1]) or self._title
        return fitted(whole, width)

    def _progress(self) -> list[str]:
        record = self.record
        elapsed = human_time(max(0.0, self._clock() - self._started_t))
        if not record.step:
            phase = record.phase or "gathering"
            return [STARTING.get(phase, phase), elapsed]
        passes = f"{record.pass_}/{record.passes} passes" if record.passes else f"pass {record.pass_}"
        left = record.time_left_s(self._clock())
        remaining = [f"{human_duration(left)} left"] if left is not None else []
        return [passes, elapsed, *remaining, f"step {human_count(record.step)}"]

    def _shares(self, width: int) -> list[str]:
        """Return a line with the trainers' mean shares of time, and what the processes are doing."""
        trainers = [t.figures for t in self.record.trainers if "compute" in t.figures]
        states = states_of(self.record.processes.values())
        if not trainers:
            return [states]
        count = len(trainers)
        compute, wait = sum(t["compute"] for t in trainers) / count, sum(t.get("wait", 0.0) for t in trainers) / count
        wire = max(0.0, 1 - compute - wait)
        shares = (f"compute {percent(compute)}", f"wait {percent(wait)}", f"wire {percent(wire)}")
        return [fitted([states, *shares], width, "   ")]

    def _charts(self, width: int) -> list[str]:
        """Return the curves of the loss and of the throughput, side by side."""
        half = max(20, width // 2 - 12)
        loss = terminal_chart(self.record.curve, width=half, height=CHART_LINES)
        rate = terminal_chart(self.record.rates, width=half, height=CHART_LINES, x_text=_moment)
        left = [f"loss {self.record.loss:.4g}" if self.record.loss is not None else "", *loss]
        right = [f"{human_count(self.record.samples_per_s)} samples/s", *rate]
        rows = max(len(left), len(right))
        left += [""] * (rows - len(left))
        right += [""] * (rows - len(right))
        return [f"{one:<{half + 11}} {other}".rstrip() for one, other in zip(left, right, strict=True)]

    def _table(self, width: int, room: int) -> list[str]:
        rows = self._rows()
        slow = slowest(self.record.trainers)
        metrics = metric_names(rows, MOST_METRICS)
        visible = max(0, room - 1 - (len(rows) > room - 1))
        selected = self._place(rows)
        begin = min(max(selected - visible + 1, 0), max(len(rows) - visible, 0))
        shown = rows[begin : begin + visible]
        own = metric_headings(metrics)
        body = [
            [">" if begin + at == selected else " ", *cells(process, metrics, is_slowest=process is slow)]
            for at, process in enumerate(shown)
        ]
        headings, body = _without_empty([" ", *HEADINGS, *own], body)
        lines = fitting(headings, body, (*NUMERIC, *own), (*own[:0:-1], *DROPPED_FIRST, *own[:1]), width)
        rest = len(rows) - len(shown)
        if rest > 0 and room > 1:
            states = states_of(process for at, process in enumerate(rows) if not begin <= at < begin + visible)
            lines.append(f"  {rest} more: " + states)
        return lines[:room]

    def _events(self, width: int, room: int) -> list[str]:
        newest_first = (
            [style.warning(line) if mark.kind in WARNINGS else line for line in wrapped(mark.t, mark.line, width)]
            for mark in reversed(list(self.record.marks))
        )
        return self._newest(newest_first, room)

    def _log(self, width: int, room: int) -> list[str]:
        process = self.wanted_log
        title = [] if process is None else [style.process(process.role, process.label)]
        newest_first = (wrapped(t, text, width) for t, text in reversed(list(self.log)))
        return [*title, *self._newest(newest_first, max(0, room - len(title)))]

    def _newest(self, newest_first: Iterable[Sequence[str]], room: int) -> list[str]:
        """Return the last lines, or those before them to which the user has scrolled. Older ones are not wrapped."""
        groups: list[Sequence[str]] = []
        count = 0
        for group in newest_first:
            groups.append(group)
            count += len(group)
            if count >= room + self._offset:
                break
        lines = [line for group in reversed(groups) for line in group]
        self._offset = min(self._offset, max(0, len(lines) - room))
        until = len(lines) - self._offset
        return list(lines[max(0, until - room) : until])

    def _keys(self, width: int) -> str:
        move = "arrows move" if self._view == "processes" else "arrows scroll"
        sort = [f"s sort ({self._order})"] if self._view == "processes" else []
        back = {"log": ["l back", "e events"], "events": ["l log", "e back"]}.get(self._view, ["l log", "e events"])
        return fitted([self._hint, *sort, *back, move], width)


def wrapped(t: float, text: str, width: int) -> list[str]:
    """Break a line of a log between words, and words only where one is longer than a line. Cut a very long line."""
    if len(text) > LINE_CHARS:
        text = f"{text[:LINE_CHARS]}... ({len(text) - LINE_CHARS:,} more characters)"
    line = clean(f"{_moment(t)} {text}")
    return textwrap.wrap(line, width, subsequent_indent="         ", drop_whitespace=False) or [""]


def _without_empty(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that have no values."""
    kept = [at for at in range(len(headings)) if at == 0 or any(row[at] for row in rows)]
    return [headings[at] for at in kept], [[row[at] for at in kept] for row in rows]


def fitted(parts: Sequence[str], width: int, separator: str = SEPARATOR) -> str:
    """Join as many of the parts as fit into the width; the first one always."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(separator) + len(part) <= width:
            line = line + separator + part
    return line


def states_of(processes: Iterable[ProcessRecord]) -> str:
    """Count the processes by role and state: `8 trainers running, 1 failed · 8 pservers running`."""
    counts: dict[str, dict[str, int]] = {}
    for process in processes:
        states = counts.setdefault(process.role, {})
        states[process.state] = states.get(process.state, 0) + 1
    parts = []
    for role in sorted(counts, reverse=True):
        by_count = sorted(counts[role].items(), key=lambda item: -item[1])
        total = sum(counts[role].values())
        name = style.process(role, f"{role}s" if total > 1 else role)
        words = [f"{count} " + style.state(state) for state, count in by_count]
        parts.append(name + " " + style.join(", ", words))
    return style.join("  ", parts)


def _moment(t: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(t))


def sparkline(points: Sequence[Point], width: int) -> str:
    """Draw the curve of the points in at most `width` characters."""
    means = [y for _, y in resample(points, width)]
    if not means:
        return ""
    low = min(means)
    span = (max(means) - low) or 1.0
    return "".join(BARS[min(7, int(8 * (mean - low) / span))] for mean in means)
