"""The report in a real browser: it asks for nothing, complains about nothing, and shows the values of the record."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.observe.record.compare import metrics
from clusterctl.observe.record.model import RunRecord
from clusterctl.report import formats
from clusterctl.report.page import render
from support.browser import CHROMIUM, WITHOUT_CHROMIUM, Browser, browser
from support.records import EVIL, METRIC, RECORDS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT_CHROMIUM)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one


@functools.cache
def rendered(name: str) -> tuple[RunRecord, str]:
    record = RECORDS[name]()
    return record, render(record)


def shown(directory: Path, name: str) -> tuple[RunRecord, Path]:
    """Write the report of a record; return both."""
    record, text = rendered(name)
    page = directory / "report.html"
    page.write_text(text, encoding="utf-8")
    return record, page


def test_the_browser_notices_requests_and_errors(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<img src='http://127.0.0.1:9/image.png'><script>throw new Error('broken')</script>")
    chromium.open(page)
    assert chromium.requests == [page.as_uri(), "http://127.0.0.1:9/image.png"]
    assert len(chromium.complaints) == 2


@pytest.mark.parametrize("name", RECORDS)
def test_a_report_asks_for_nothing_and_shows_the_figures_of_every_process(
    name: str, chromium: Browser, tmp_path: Path
) -> None:
    record, page = shown(tmp_path, name)
    chromium.open(page)
    assert chromium.complaints == []
    assert chromium.requests == [page.as_uri()]
    head, *rows = chromium.rows("Processes")
    assert [row[:4] for row in rows] == [
        [one.name, f"{one.node.label} {one.node.where}", one.state, str(one.restarts)] for one in record.processes
    ]
    figures = {"step": formats.whole, "loss": formats.number, "wait": formats.share, "memory": formats.amount}
    for figure, formatted in figures.items():
        assert [row[head.index(figure)] for row in rows] == [
            formatted(one.figures.get(figure)) for one in record.processes
        ]
    values = chromium.cells("document.querySelector('header table')")[1:]
    assert [row[:3] for row in values] == [
        [one.name, formats.number(one.final), formats.number(one.low and one.low.mean)] for one in metrics(record)
    ]


@pytest.mark.parametrize("name", ["failed", "large", "silent_node"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_report_fits_a_phone_in_light_and_dark(name: str, dark: bool, chromium: Browser, tmp_path: Path) -> None:
    chromium.open(shown(tmp_path, name)[1], width=360, dark=dark)
    assert chromium.evaluate("document.documentElement.scrollWidth") == 360
    background = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_the_text_of_programs_stays_text(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(shown(tmp_path, "failed")[1])
    titles = chromium.evaluate("[...document.querySelectorAll('figcaption')].map(one => one.textContent)")
    assert METRIC in titles
    assert chromium.evaluate("document.querySelector('.cause').textContent").startswith("trainer1@node1 (10.0.0.11)")
    assert "\x1b" in EVIL
    assert "\x1b" not in chromium.evaluate("document.body.textContent")
    assert chromium.evaluate("document.querySelectorAll('[onload]').length") == 0


LOOKS = """(() => {
  const seen = one => one.getClientRects().length > 0 && getComputedStyle(one).visibility === "visible";
  return [...document.querySelectorAll(%r)].filter(seen).map(one => one.innerText);
})()"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_summary_cause_and_logs_are_readable_with_scripts_off(media: str, chromium: Browser, tmp_path: Path) -> None:
    chromium.open(shown(tmp_path, "failed")[1], scripts=False, media=media)
    assert chromium.evaluate(LOOKS % "h1") == ["\u2717 Failed after 11 min 40 s"]
    (cause,) = chromium.evaluate(LOOKS % ".card")
    assert "ValueError: </script><b>x" in cause
    assert "What to do: fix train.py:10" in cause
    logs = chromium.evaluate(LOOKS % "details .line")
    assert sum("line 19 of trainer1" in line for line in logs) == 1
    assert len(chromium.evaluate(LOOKS % "details")) == 8
    if media == "print":
        assert len(logs) == 8 * 20


def test_style_sheets_alone_switch_between_step_and_time(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(shown(tmp_path, "succeeded")[1], scripts=False)

    def visible() -> list[Any]:
        counts = (f"document.querySelectorAll('.v-{kind}')" for kind in ("step", "time", "both"))
        return [chromium.evaluate(f"[...{some}].filter(one => one.offsetHeight).length") for some in counts]

    assert visible() == [6, 0, 5]
    x, y = chromium.evaluate(
        "(box => [box.x + 5, box.y + 5])(document.querySelector('label[for=by-time]').getBoundingClientRect())"
    )
    chromium.click(x, y)
    assert visible() == [0, 6, 5]


def test_the_pointer_shows_the_values_of_the_merged_curve(chromium: Browser, tmp_path: Path) -> None:
    record, page = shown(tmp_path, "succeeded")
    chromium.open(page)
    x, y, width = chromium.evaluate(
        "(box => [box.x, box.y, box.width])(document.querySelector('figure .plot').getBoundingClientRect())"
    )
    chromium.move(x + width - 1, y + 20)
    step, values = chromium.evaluate("document.querySelector('.tip').textContent").split("\n")
    last = [curve.buckets[-1].mean or 0.0 for curve in record.find("step", "loss")]
    assert step == "step 991"
    mean, _, rest = values.removeprefix("trainers: ").partition(" (")
    low, high = rest.rstrip(")").split(" \u2013 ")
    assert [float(mean), float(low), float(high)] == pytest.approx([sum(last) / 4, min(last), max(last)], rel=1e-4)
    chromium.move(x + width / 2, y - 40)
    assert chromium.evaluate("document.querySelector('.tip')") is None


def test_a_curve_has_holes_where_values_are_not_finite(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(shown(tmp_path, "rolled_back")[1])
    path = "document.querySelector('figure .v-step path.all').getAttribute('d')"
    assert chromium.evaluate(path).count("M") == 3
    assert chromium.evaluate("document.querySelector('figure .v-step path.gap').getAttribute('d')").count("M") == 5
    assert chromium.evaluate("document.querySelectorAll('figure .v-step path.undone').length") == 4


def test_the_timeline_has_every_process_and_what_happened_to_it(chromium: Browser, tmp_path: Path) -> None:
    record, page = shown(tmp_path, "failed")
    chromium.open(page)
    rows = chromium.evaluate("[...document.querySelectorAll('.rows .row')].map(row => row.innerText.split(' ')[0])")
    assert rows[1:-1] == [process.name for process in record.processes]
    bars = chromium.evaluate(
        "[...document.querySelectorAll('.rows .row')].map(row => [...row.querySelectorAll('rect')]"
        ".map(one => one.getAttribute('class').slice(2)))"
    )
    number = 1 + [process.name for process in record.processes].index("trainer1")
    assert bars[number] == ["starting", "running", "restarting", "starting", "running", "stalled", "running"]
    symbols = chromium.evaluate(
        f"[...document.querySelectorAll('.rows .row')[{number}].querySelectorAll('.sym')].map(one => one.title)"
    )
    assert [title.partition(" ")[2][:11] for title in symbols] == ["exited with", "made no ste", "exited with"]
