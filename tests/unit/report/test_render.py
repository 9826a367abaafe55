"""The report of a run as text: figures, hostile content, absurd values, and its size."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from clusterctl.common.curves import Bucket, Curve
from clusterctl.observe.record.compare import metrics
from clusterctl.observe.record.model import Mark, RunRecord, Span, TimedLine
from clusterctl.report import formats
from clusterctl.report.axes import step_axis, time_axis, value_axis
from clusterctl.report.figures import charts
from clusterctl.report.page import render
from clusterctl.report.summary import headline
from support.records import EVIL, METRIC, RECORDS, START, failed, points, rolled_back, running, succeeded

MOST_BYTES = 1_500_000


@functools.cache
def record_of(name: str) -> RunRecord:
    return RECORDS[name]()


@functools.cache
def page_of(name: str) -> str:
    return render(record_of(name))


class Elements(HTMLParser):
    """Collects tags, attributes, and the contents of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data


def test_all_figures_have_charts() -> None:
    titles = [chart.title for chart in charts(succeeded())]
    expected = [
        "Throughput, samples/s",
        "Throughput of each trainer, samples/s",
        "Where the trainers' time went",
        "Busy time of pservers",
        "Staleness of pushes",
        "Rows of sparse tables",
        "CPU, cores",
        "Memory",
    ]
    assert titles[0] == "Loss"
    assert titles[-len(expected) :] == expected


@pytest.mark.parametrize("name", RECORDS)
def test_a_report_has_only_elements_of_ours_whatever_programs_and_nodes_write(name: str) -> None:
    page = page_of(name)
    found = Elements(page)
    assert len(found.scripts) == 2
    assert not {"iframe", "img", "object", "embed", "base", "form"} & set(found.tags)
    assert [pair for pair in found.attributes if pair[0].startswith("on")] == []
    assert [value for name, value in found.attributes if name in ("src", "href", "action")] == ["data:,"]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", page)
    assert json.loads(found.scripts[0])


def test_the_policy_of_a_report_forbids_the_network_and_all_scripts_but_its_own() -> None:
    found = Elements(page_of("succeeded"))
    policy = next(value for name, value in found.attributes if value.startswith("default-src"))
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert "http" not in policy


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("succeeded", "Succeeded after 17 min"),
        ("failed", "Failed after 11 min 40 s"),
        ("lost", "Lost; the end is not known"),
        ("running", "Running for 8 min 20 s so far"),
        ("running", "4 trainers and 4 pservers on 4 nodes, mode async."),
        ("running", "Newest loss: "),
        ("resumed", "Resumed from run 1 of JOB20261120-101010 at step 300."),
        ("silent_node", "node2 (10.0.0.12) did not answer: connection refused"),
        ("silent_node", "node3 was left out of the run: disk full"),
        ("failed", "fix train.py:10, or the data it was reading there"),
        ("rolled_back", "Dotted lines were undone by a roll back."),
        ("rolled_back", "marks values that are NaN or infinite"),
        ("large", "Far from the others: trainer7 ("),
    ],
)
def test_a_report_tells_what_happened_in_words(name: str, words: str) -> None:
    assert words in page_of(name)


def test_final_lowest_and_highest_values_are_those_of_the_points() -> None:
    record = succeeded()
    loss, auc, _ = metrics(record)
    by_step = list(zip(*(curve.buckets for curve in record.find("step", "loss")), strict=True))
    means = {some[0].step0: sum(bucket.mean or 0.0 for bucket in some) / 4 for some in by_step}
    assert loss.final == pytest.approx(means[991])
    assert loss.low is not None
    assert loss.high is not None
    assert (loss.low.mean, loss.low.step0) == (pytest.approx(min(means.values())), min(means, key=means.__getitem__))
    assert loss.high.mean == pytest.approx(max(means.values()))
    assert auc.name == METRIC
    assert auc.final == pytest.approx(sum(0.5 + 0.4 * (1 - math.exp(-9 / 4)) + 0.002 * rank for rank in range(4)) / 4)


def test_a_final_value_that_is_not_finite_is_called_so() -> None:
    record = succeeded()
    curves = [
        replace(
            one, buckets=(*one.buckets, Bucket(START + 999, START + 999, 999, 999, 0, 0.0, None, None, None, None, 1))
        )
        if (one.of, one.name, one.rank) == ("step", "loss", 2)
        else one
        for one in record.curves
    ]
    record = replace(record, curves=tuple(curves))
    assert metrics(record)[0].final is None
    assert "Final loss: not finite; best: " in render(record)


def test_undone_points_are_kept_apart_from_the_curve() -> None:
    record = rolled_back()
    loss = next(charts(record))
    assert loss.by_step is not None
    (group,) = loss.by_step.groups
    assert len(group.undone) == 4
    undone = {bucket.mean for line in group.undone for bucket in line.buckets}
    assert undone.isdisjoint(bucket.mean for line in group.lines for bucket in line.buckets)


def test_the_throughput_of_the_run_is_the_sum_over_its_trainers() -> None:
    some = [
        Curve(
            "trainer", rank, "step", "samples_per_s", tuple(points([100.0 + rank] * 50, begin=12 + 0.3 * rank)), False
        )
        for rank in range(3)
    ]
    record = replace(succeeded(), curves=tuple(some))
    total = next(charts(record)).by_time.groups[0]
    assert total.last == 303.0
    assert {bucket.mean for bucket in total.buckets[1:]} == {303.0}


def test_of_many_trainers_only_the_odd_ones_have_a_line() -> None:
    by_title = {chart.title: chart for chart in charts(record_of("large"))}
    speed = by_title["Throughput of each trainer, samples/s"]
    assert [line.process for line in speed.by_time.groups[0].lines] == ["trainer7"]
    assert by_title["Loss"].odd == ()


@pytest.mark.slow
def test_a_large_run_fits_and_a_ten_times_longer_one_is_as_large() -> None:
    record, size = record_of("large"), len(page_of("large").encode())
    assert size < MOST_BYTES
    longer = [
        replace(
            curve,
            buckets=tuple(
                b._replace(t0=START + 10 * (b.t0 - START), t1=START + 10 * (b.t1 - START)) for b in curve.buckets
            ),
        )
        for curve in record.curves
    ]
    ten_hours = replace(record, curves=tuple(longer), ended_t=START + 36_000)
    assert len(render(ten_hours).encode()) == pytest.approx(size, rel=0.02)


def test_the_size_has_a_bound_whatever_nodes_send() -> None:
    record = succeeded(nodes=8)
    for process in record.processes:
        process.tail = tuple(TimedLine(START, "x" * 100_000) for _ in range(1000))
        process.spans = tuple(Span("running", START + i, START + i + 1, i) for i in range(20))
        process.figures["values"] = {}
        process.figures["tables"] = [{"name": f"{'t' * 5000}{i}", "rows": i} for i in range(2000)]
        process.figures["staleness"] = [[i, i] for i in range(5000)]
    logged = [
        Curve("trainer", 0, "log", f"{'m' * 3000}{i}", tuple(points([0.1 * i, 0.5, 0.25])), False) for i in range(3000)
    ]
    marks = tuple(Mark(START + i, "nan", "m" * 10_000, 1, "trainer", 1) for i in range(2000))
    record = replace(record, curves=(*record.curves, *logged), marks=marks, settings={"MODE": "y" * 10**6})
    assert len(render(record).encode()) < MOST_BYTES


def _with_values(values: list[float]) -> RunRecord:
    curves = [
        Curve("trainer", 0, "step", name, tuple(points(values)), False) for name in ("loss", "samples_per_s", "wait")
    ]
    usage = [replace(curve, of="usage", name="memory") for curve in curves[:1]]
    return replace(succeeded(nodes=2), curves=(*curves, *usage))


ABSURD: dict[str, Callable[[], RunRecord]] = {
    "largest values": lambda: _with_values([1.7e308, -1.7e308, 0.0, 5e-324]),
    "all the same": lambda: _with_values([1e-300] * 3),
    "zeros": lambda: _with_values([0.0, 0.0]),
    "one point": lambda: _with_values([3.25]),
    "only gaps": lambda: _with_values([float("nan"), float("inf")]),
    "steps without end": lambda: replace(
        succeeded(),
        curves=(Curve("trainer", 0, "step", "loss", tuple(points([1.0, 2.0], first=1, every=2**62)), False),),
    ),
    "no curves": lambda: replace(succeeded(), curves=()),
    "nothing at all": lambda: replace(
        succeeded(), curves=(), marks=(), processes=(), nodes=(), started_t=None, ended_t=None, settings={}, mode=None
    ),
    "no start": lambda: replace(succeeded(), started_t=None, ended_t=None),
    "an end before the start": lambda: replace(succeeded(), ended_t=START - 1e6),
    "times without end": lambda: replace(
        succeeded(), ended_t=9.9e10, marks=(Mark(9.9e10, "saved", EVIL), Mark(0.0, "ended", EVIL))
    ),
    "an unknown state": lambda: replace(failed(), state="unknown", cause=None),
    "starting": lambda: replace(running(), state="starting", curves=()),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_records_have_a_report(name: str) -> None:
    page = render(ABSURD[name]())
    assert "</html>" in page
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)
    assert "null" not in Elements(page).scripts[0] or name != "one point"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (2.30811, "2.308"), (1204.0, "1,204"), (41_230.0, "41.2k"), (1.5e-5, "1.5e-05"), (-3.5e7, "-35M"),
     (9_999.0, "9,999"), (99_996.0, "100k"), (999_960.0, "1M"), (1e300, "1e+300"), (None, "\u2013")],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (4.24, "4.2 s"), (59.7, "1 min"), (125.0, "2 min 5 s"), (3600.0, "1 h"), (200_000.0, "2 d 7 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


def axes() -> Iterator[Any]:
    values = (0.0, 1e-12, 0.5, 1.0, 7.0, 999.0, 1e6, 1e290, -3.0)
    for low in values:
        for high in values:
            yield value_axis([low, high], formats.number)
            yield value_axis([low, high], formats.number, may_be_log=True)
            yield value_axis([low, high], formats.number, from_zero=True)
            yield step_axis(abs(low), abs(high))
    yield from (time_axis(seconds) for seconds in (0.0, 0.3, 9.0, 61.0, 4000.0, 1e5, 1e7, 1e11))


def test_every_axis_has_a_few_ticks_inside_its_range() -> None:
    for axis in axes():
        assert axis.low < axis.high
        assert len(axis.ticks) <= 11, axis
        assert all(-0.001 <= axis.at(tick) <= 1.001 for tick in axis.ticks), axis


def test_times_of_a_long_run_have_their_date() -> None:
    short, long = succeeded(), succeeded(seconds=60_000.0)
    assert re.search(r">\d\d:\d\d:\d\d\.000</td>", render(short))
    assert not re.search(r">\d\d-\d\d \d\d:\d\d:\d\d</td>", render(short))
    assert re.search(r">11-1\d \d\d:\d\d:\d\d</td>", render(long))


def test_a_headline_is_one_line() -> None:
    assert [headline(record_of(name)) for name in ("succeeded", "failed")] == [
        "Succeeded after 17 min",
        "Failed after 11 min 40 s",
    ]
