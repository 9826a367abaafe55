"""The timeline of a run: the states of every process as bars, and what happened to it as symbols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterctl.observe.record.model import Mark, ProcessRecord, RunRecord, Span
from clusterctl.report import formats
from clusterctl.report.axes import time_axis
from clusterctl.report.figures import Frame, frame
from clusterctl.report.html import Html, element, join

WIDTH = 1000
#: The states that have a colour, in order of the legend.
STATES = ("starting", "ready", "running", "stalled", "restarting", "failed", "lost")
SYMBOLS = {
    "saved": ("\u25be", "save"),
    "restarting": ("\u21bb", "restart"),
    "moved": ("\u21b7", "moved"),
    "resumed_by": ("\u21b7", "resumed"),
    "rolled_back": ("\u21b6", "roll back"),
    "state_lost": ("\u2717", "failure"),
    "stalled": ("\u2016", "stall"),
    "standstill": ("\u2016", "stall"),
    "lost": ("\u2715", "loss"),
    "exited": ("\u2717", "failure"),
    "nan": ("~", "NaN"),
    "rejoined": ("\u2713", "rejoined"),
    "ended": ("\u25a0", "end"),
}
MOST_SYMBOLS = 60  # in one row


def timeline(record: RunRecord) -> Html | None:
    """Return the timeline, or None if nothing is known of any process."""
    if not any(process.spans for process in record.processes) and not record.marks:
        return None
    shown = frame(record)
    by_process: dict[tuple[str | None, int | None], list[Mark]] = {}
    for mark in record.marks:
        by_process.setdefault((mark.role, mark.rank), []).append(mark)
    rows = [_row(shown, "the run", None, (), by_process.get((None, None), ()))]
    rows += [
        _row(shown, process.name, process, process.spans, by_process.get((process.role, process.rank), ()))
        for process in record.processes
    ]
    many = "rows many" if len(rows) > 24 else "rows"
    return join([_legend(record), element("div", *rows, _axis(shown), class_=many)])


def _row(shown: Frame, name: str, process: ProcessRecord | None, spans: Sequence[Span], marks: Iterable[Mark]) -> Html:
    bars = element(
        "svg",
        *_bars(shown, spans),
        viewBox=f"0 0 {WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=_described(shown, name, spans),
    )
    place = element("small", process.node.label) if process is not None else None
    label = element("span", name, " " if place else None, place, class_="who")
    return element("div", label, element("div", bars, *_symbols(shown, marks), class_="bar"), class_="row")


def _bars(shown: Frame, spans: Sequence[Span]) -> Iterator[Html]:
    for span in spans:
        begin = WIDTH * shown.at(span.begin)
        end = WIDTH * (1.0 if span.end is None else shown.at(span.end))
        state = span.state if span.state in STATES else "other"
        until = "" if span.end is None else f" for {formats.duration(span.end - span.begin)}"
        attempt = f", attempt {span.attempt}" if span.attempt > 1 else ""
        title = element("title", f"{span.state}{attempt}: {formats.clock(span.begin, dated=shown.is_long)}{until}")
        yield element(
            "g", title, _rect(begin, max(end - begin, 1.0), f"s-{state}", is_thin=state in ("starting", "restarting"))
        )


def _rect(x: float, width: float, class_: str, *, is_thin: bool) -> Html:
    """Return a bar. That of a process which does not work yet is thin, so that colours are not needed to see it."""
    y, height = (3.5, 3) if is_thin else (1, 8)
    return element("rect", x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=height, class_=class_)


def _symbols(shown: Frame, marks: Iterable[Mark]) -> Iterator[Html]:
    """Yield the symbols of a row; of several of one kind at the same place only the first."""
    seen: set[tuple[str, int]] = set()
    for mark in marks:
        if mark.kind not in SYMBOLS:
            continue
        place = (mark.kind, round(150 * shown.at(mark.t)))
        if place in seen or len(seen) >= MOST_SYMBOLS:
            continue
        seen.add(place)
        title = f"{formats.clock(mark.t, dated=shown.is_long)} {mark.text}"
        left = f"left:{100 * shown.at(mark.t):.1f}%"
        yield element("span", SYMBOLS[mark.kind][0], class_=f"sym k-{mark.kind}", style=left, title=title)


def _legend(record: RunRecord) -> Html:
    used = {span.state for process in record.processes for span in process.spans}
    bars = [element("span", element("i", class_=f"s-{state}"), state) for state in STATES if state in used]
    kinds = {SYMBOLS[mark.kind]: mark.kind for mark in reversed(record.marks) if mark.kind in SYMBOLS}
    symbols = [
        element("span", element("span", symbol, class_=f"sym k-{kinds[symbol, word]}"), word)
        for symbol, word in dict.fromkeys(SYMBOLS.values())
        if (symbol, word) in kinds
    ]
    return element("div", *bars, *symbols, class_="legend")


def _axis(shown: Frame) -> Html:
    axis = time_axis(shown.length_s)
    ticks = [
        element("span", axis.format(tick), class_="x last" if axis.at(tick) > 0.93 else "x", style=_left(axis.at(tick)))
        for tick in axis.ticks
    ]
    return element("div", element("span", class_="who"), element("div", *ticks, class_="bar ticks"), class_="row")


def _left(place: float) -> str:
    return f"left:{100 * place:.1f}%"


def _described(shown: Frame, name: str, spans: Sequence[Span]) -> str:
    """Return the row as text for screen readers."""
    words = [f"{span.state} at {formats.clock(span.begin, dated=shown.is_long)}" for span in spans[:20]]
    return f"{name}: {', '.join(words)}" if words else name
