"""The charts of a run: which figures they show, of which processes, by step and by time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from clusterctl.common.curves import Bucket, Curve, mean_of
from clusterctl.observe.record.curves import Axis, final, merged, summed
from clusterctl.observe.record.model import RunRecord
from clusterctl.report.axes import step_axis, time_axis
from clusterctl.report.chart import FORMATS, MergedCurve, Picture
from clusterctl.report.html import shortened

A_DAY_S = 86400.0


class Frame(NamedTuple):
    """The seconds from `start`, a time, to the end of the run, or of what is known of it."""

    start: float
    length_s: float

    @property
    def is_long(self) -> bool:
        """True if times in it need their date."""
        return self.length_s > A_DAY_S / 2

    def at(self, t: float) -> float:
        """Return the place of a time: 0 at the start and 1 at the end."""
        return min(1.0, max(0.0, (t - self.start) / self.length_s))


def frame(record: RunRecord) -> Frame:
    """Return the time from the start of the run to its end; if they are unknown, to the last that is recorded."""
    begins = [process.spans[0].begin for process in record.processes if process.spans]
    begins += [curve.buckets[0].t0 for curve in record.curves if curve.buckets]
    ends = [curve.buckets[-1].t1 for curve in record.curves if curve.buckets]
    ends += [span.end or span.begin for process in record.processes for span in process.spans[-1:]]
    start = record.started_t if record.started_t is not None else min(begins, default=record.read_t)
    end = (
        record.ended_t if record.ended_t is not None else record.read_t if record.is_live else max(ends, default=start)
    )
    return Frame(start, max(end - start, 0.1))


CELLS = 200  # points of a merged curve: more do not show
LINE_CELLS = 100  # points of the curve of one process, behind it
MOST_LINES = 16  # processes that have a line each; of more, only the odd ones have
MOST_ODD = 4
ODD_FROM = 6.0  # times the usual distance from the median
MOST_METRICS = 20
MOST_TABLES = 4
MOST_MARKS = 200
LONGEST_NAME = 60
MARKED = ("restarting", "moved", "rolled_back", "lost")


@dataclass(frozen=True)
class CurveSource:
    """One merged curve: the processes' curves, and how they become one."""

    name: str
    curves: Sequence[Curve]
    undone: Sequence[Curve] = ()
    is_total: bool = False
    has_lines: bool = True

    @property
    def has_single(self) -> bool:
        """True if single processes have a line of their own."""
        return self.has_lines and not self.is_total and len(self.curves) > 1


@dataclass(frozen=True)
class Chart:
    """A chart; `by_step` is None if the figures have no step. `odd` are the processes far from the others."""

    title: str
    by_step: Picture | None
    by_time: Picture
    odd: tuple[str, ...] = ()


def charts(record: RunRecord) -> Iterator[Chart]:
    """Yield the charts that there are points for."""
    yield from _chart(record, "Loss", [_source(record, "step", "loss")], may_be_log=True)
    for name in record.metrics[:MOST_METRICS]:
        yield from _chart(record, shortened(name, LONGEST_NAME), [_source(record, "log", name)])
    speed = _source(record, "step", "samples_per_s")
    whole = CurveSource("all trainers together", speed.curves, is_total=True)
    yield from _chart(record, "Throughput, samples/s", [whole], from_zero=True)
    if len(speed.curves) > 1:
        yield from _chart(record, "Throughput of each trainer, samples/s", [speed], from_zero=True)
    shares = [_source(record, "step", name, title=name, has_lines=False) for name in ("compute", "wait", "wire")]
    yield from _chart(record, "Where the trainers' time went", shares, format="share", from_zero=True)
    busy = [
        _source(record, "step", name, "pserver", title=title, has_lines=False)
        for name, title in (("apply_s", "apply"), ("send_s", "send"))
    ]
    yield from _chart(record, "Busy time of pservers", busy, format="share", from_zero=True)
    stale = _source(record, "step", "staleness", "pserver", title="pservers")
    yield from _chart(record, "Staleness of pushes", [stale], from_zero=True)
    yield from _chart(record, "Rows of sparse tables", list(_tables(record)), from_zero=True)
    for name, title, format in (("cpu", "CPU, cores", "number"), ("memory", "Memory", "amount")):
        used = [_source(record, "usage", name, role, title=f"{role}s") for role in ("trainer", "pserver")]
        yield from _chart(record, title, used, format=format, from_zero=True)


def _source(
    record: RunRecord, of: str, name: str, role: str = "trainer", *, title: str = "trainers", has_lines: bool = True
) -> CurveSource:
    undone = list(record.find(of, name, role=role, undone=True))
    return CurveSource(title, list(record.find(of, name, role=role)), undone, has_lines=has_lines)


def _tables(record: RunRecord) -> Iterator[CurveSource]:
    """Yield the rows of the largest tables, each summed over the pservers."""
    by_name: dict[str, list[Curve]] = {}
    for curve in record.curves:
        if curve.of == "table" and not curve.undone and curve.buckets:
            by_name.setdefault(curve.name, []).append(curve)
    size = {name: sum(curve.buckets[-1].last or 0.0 for curve in curves) for name, curves in by_name.items()}
    for name in sorted(by_name, key=lambda name: -size[name])[:MOST_TABLES]:
        yield CurveSource(shortened(name, LONGEST_NAME), by_name[name], is_total=True)


def _chart(
    record: RunRecord,
    title: str,
    sources: Sequence[CurveSource],
    *,
    format: str = "number",
    from_zero: bool = False,
    may_be_log: bool = False,
) -> Iterator[Chart]:
    sources = [source for source in sources if any(curve.buckets for curve in (*source.curves, *source.undone))]
    if not sources:
        return
    drawn = partial(Picture, format=format, from_zero=from_zero, may_be_log=may_be_log)
    shown = frame(record)
    marks = [mark.t - shown.start for mark in record.marks if mark.kind in MARKED][:MOST_MARKS]
    odd = tuple(_described(curve, format) for source in sources if source.has_single for curve in _odd(source.curves))
    yield Chart(
        title,
        _by_step(sources, drawn),
        drawn(_groups(sources, "time"), time_axis(shown.length_s), partial(_at, shown.start), "time", marks=marks),
        odd,
    )


def _by_step(sources: Sequence[CurveSource], drawn: Callable[..., Picture]) -> Picture | None:
    steps = [
        step
        for source in sources
        for curve in (*source.curves, *source.undone)
        for bucket in (*curve.buckets[:1], *curve.buckets[-1:])
        for step in (bucket.step0, bucket.step1)
        if step is not None
    ]
    if not steps:
        return None
    return drawn(_groups(sources, "step"), step_axis(float(min(steps)), float(max(steps))), _step, "step")


def _groups(sources: Sequence[CurveSource], by: Axis) -> list[MergedCurve]:
    return [
        MergedCurve(
            source.name,
            summed(source.curves, by=by, cells=CELLS) if source.is_total else merged(source.curves, by=by, cells=CELLS),
            [_line(curve, by) for curve in _shown(source)],
            [_line(curve, by) for curve in source.undone[:MOST_LINES]],
            has_band=not source.is_total,
            are_odd=len(source.curves) > MOST_LINES,
            last=final(source.curves, is_total=source.is_total),
        )
        for source in sources
    ]


def _shown(source: CurveSource) -> Sequence[Curve]:
    """Return the curves that get a line of their own."""
    if not source.has_single:
        return ()
    return source.curves if len(source.curves) <= MOST_LINES else _odd(source.curves)


def _odd(curves: Sequence[Curve]) -> list[Curve]:
    """Return the few curves of many that are far from the others, farthest first."""
    if len(curves) <= MOST_LINES:
        return []
    means = [(mean, curve) for curve in curves if (mean := mean_of(curve.buckets)) is not None]
    if not means:
        return []
    middle = statistics.median(mean for mean, _ in means)
    usual = statistics.median(abs(mean - middle) for mean, _ in means)
    far = sorted(means, key=lambda pair: -abs(pair[0] - middle))[:MOST_ODD]
    return [curve for mean, curve in far if abs(mean - middle) > max(ODD_FROM * usual, abs(middle) * 0.02)]


def _described(curve: Curve, format: str) -> str:
    return f"{curve.process} ({FORMATS[format](mean_of(curve.buckets))})"


def _line(curve: Curve, by: Axis) -> Curve:
    return replace(curve, buckets=merged([curve], by=by, cells=LINE_CELLS))


def _step(bucket: Bucket) -> float:
    return bucket.step or 0.0


def _at(start: float, bucket: Bucket) -> float:
    """Return the seconds from the start of the run to the middle of a bucket."""
    return bucket.t - start
