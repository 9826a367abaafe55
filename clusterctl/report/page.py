"""The whole page. It needs no network, and forbids it: its only script is known by its hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from clusterctl.escape import for_script
from clusterctl.observe.record.model import RunRecord
from clusterctl.report import sections
from clusterctl.report.chart import Picture, described, draw, hover_data, legend
from clusterctl.report.figures import MOST_LINES, MOST_METRICS, Chart, charts
from clusterctl.report.html import Html, element, join
from clusterctl.report.summary import OUTCOMES, summary
from clusterctl.report.timeline import timeline

#: The beginning of each report. A file that has it may be replaced by a newer report.
BEGIN = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="clusterctl report">'
)
BAND = "A band spans the lowest and the highest value of all processes of a kind; the line in it is their mean."


def render(record: RunRecord) -> str:
    """Return the report of a run as an HTML document."""
    style, script = _file("style.css"), _file("script.js")
    known = list(charts(record))
    parts = [summary(record), *_body(record, known)]
    data = for_script([[picture and hover_data(picture) for picture in (one.by_step, one.by_time)] for one in known])
    values = element("script", Html(data), id="data", type="application/json")
    return join(
        [
            Html(BEGIN),
            *_head(f"{record.name}: {OUTCOMES.get(record.state, record.state).lower()}", style, script),
            Html("</head><body><main>"),
            *parts,
            Html("</main>"),
            values,
            element("script", Html(script)),
            Html("</body></html>\n"),
        ]
    )


def _file(name: str) -> str:
    return resources.files("clusterctl.report").joinpath(name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str) -> Iterator[Html]:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    yield element(
        "meta", http_equiv="Content-Security-Policy", content=f"{policy}; base-uri 'none'; form-action 'none'"
    )
    yield element("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield element("meta", name="color-scheme", content="light dark")
    yield element("meta", name="referrer", content="no-referrer")
    yield element("link", rel="icon", href="data:,")  # so that a browser does not ask the server for one
    yield element("title", title)
    yield element("style", Html(style))


def _body(record: RunRecord, known: Sequence[Chart]) -> Iterator[Html | None]:
    yield from _charts(record, known)
    yield from _section("Timeline", timeline(record))
    yield from _section(
        "Processes", sections.processes(record), sections.staleness(record), sections.sparse_tables(record)
    )
    yield from _section("Events", sections.events(record))
    yield from _section("Last log lines", sections.logs(record))
    yield from _section("Settings and arguments", sections.setup(record))
    yield from _section("Nodes", sections.nodes(record))


def _section(title: str, *content: Html | None) -> Iterator[Html]:
    if any(content):
        yield element("section", element("h2", title), *content)


def _charts(record: RunRecord, known: Sequence[Chart]) -> Iterator[Html]:
    if not known:
        return
    switch = [
        *(_choice("step", "by step", checked=True), _choice("time", "by time", checked=False)),
        element("p", f"{BAND} {_key(known)}", class_="note"),
        element("div", *(_figure(number, one) for number, one in enumerate(known)), class_="charts"),
        sections.metrics_left_out(record.metrics[MOST_METRICS:]),
    ]
    yield element("section", element("h2", "Curves"), *switch, class_="curves")


def _choice(value: str, label: str, *, checked: bool) -> Html:
    """Return a radio button: style sheets alone switch between the views."""
    button = element("input", type="radio", name="by", id=f"by-{value}", checked=checked)
    return join([button, element("label", label, for_=f"by-{value}")])


def _key(known: Sequence[Chart]) -> str:
    """Explain the marks that these charts have."""
    pictures = [picture for one in known for picture in (one.by_step, one.by_time) if picture]
    groups = [group for picture in pictures for group in picture.groups]
    words = []
    if any(group.lines for group in groups):
        words.append("Thin lines are single processes.")
    if any(group.are_odd for group in groups):
        words.append(f"Of more than {MOST_LINES}, only those far from the others have one.")
    if any(group.undone for group in groups):
        words.append("Dotted lines were undone by a roll back.")
    if any(bucket.gaps for group in groups for bucket in group.buckets):
        words.append("A red tick on the axis marks values that are NaN or infinite.")
    if any(picture.marks for picture in pictures):
        words.append("By time, dashed lines mark restarts, roll backs and losses.")
    return " ".join(words)


def _figure(number: int, one: Chart) -> Html:
    views = [_view(one, one.by_step, "step"), _view(one, one.by_time, "time" if one.by_step else "both")]
    odd = element("p", f"Far from the others: {', '.join(one.odd)}", class_="note") if one.odd else None
    return element("figure", element("figcaption", one.title), *views, odd, class_="chart", data_chart=number)


def _view(one: Chart, picture: Picture | None, kind: str) -> Html | None:
    if picture is None:
        return None
    parts: list[Any] = [legend(picture), draw(picture, described(one.title, picture))]
    return element("div", *parts, class_=f"view v-{kind}")
