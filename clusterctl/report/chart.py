"""One chart: merged curves with their range in front, single processes behind, as SVG that stretches to any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from clusterctl.observe.record.model import Bucket
from clusterctl.report import formats
from clusterctl.report.axes import Axis, value_axis
from clusterctl.report.html import Html, element

WIDTH, HEIGHT = 1000, 400  # of the drawing, in its own units
FEW = 24  # points that are drawn as dots too
FORMATS: dict[str, Callable[[float | None], str]] = {
    "number": formats.number,
    "amount": formats.amount,
    "share": formats.share,
}


@dataclass(frozen=True)
class ProcessCurve:
    """The points of one process."""

    name: str
    buckets: Sequence[Bucket]


@dataclass(frozen=True)
class MergedCurve:
    """Processes that are merged into one curve.

    `lines` are single ones, only those far from the others with `are_odd`; `undone` are points that a roll back undid;
    `last` is the value at the end.
    """

    name: str
    buckets: Sequence[Bucket]
    lines: Sequence[ProcessCurve] = ()
    undone: Sequence[ProcessCurve] = ()
    has_band: bool = True
    are_odd: bool = False
    last: float | None = None


@dataclass(frozen=True)
class Picture:
    """A chart by step or by time. `x` gives the place of a bucket; `marks` are places of events on that axis."""

    groups: Sequence[MergedCurve]
    axis: Axis
    x: Callable[[Bucket], float]
    x_name: str
    format: str = "number"
    from_zero: bool = False
    may_be_log: bool = False
    marks: Sequence[float] = field(default=())

    @cached_property
    def y(self) -> Axis:
        """The axis of values: for the merged curves, their ranges and what is drawn of single processes."""
        ends = [
            end
            for group in self.groups
            for one in (group.buckets, *(line.buckets for line in (*group.lines, *group.undone)))
            for bucket in one
            for end in ((bucket.low, bucket.high) if one is group.buckets and group.has_band else (bucket.mean,))
            if end is not None
        ]
        return value_axis(ends, FORMATS[self.format], from_zero=self.from_zero, may_be_log=self.may_be_log)


def draw(picture: Picture, text: str) -> Html:
    """Return the plot with its axes; `text` is for screen readers."""
    y = picture.y
    layers = [
        *(_path(f"M0 {_down(y, tick)}H{WIDTH}", "grid") for tick in y.ticks),
        *(_path(f"M{_across(picture.axis, mark)} 0V{HEIGHT}", "mark") for mark in picture.marks),
        *(layer for number, group in enumerate(picture.groups) for layer in _behind(picture, y, group, number)),
        *(layer for number, group in enumerate(picture.groups) for layer in _in_front(picture, y, group, number)),
        *_gaps(picture),
    ]
    drawing = element(
        "svg",
        *layers,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=text,
    )
    return element("div", drawing, *_y_labels(y), *_x_labels(picture.axis), class_="plot")


def described(title: str, picture: Picture) -> str:
    """Return a picture as text for screen readers."""
    words = [f"{title}, by {picture.x_name}"]
    for group in picture.groups:
        known = [bucket.mean for bucket in group.buckets if bucket.mean is not None]
        if known:
            first, last = FORMATS[picture.format](known[0]), FORMATS[picture.format](known[-1])
            words.append(f"{group.name} from {first} to {last}")
    return "; ".join(words)


def hover_data(picture: Picture) -> dict[str, Any]:
    """Return the values of the merged curves for the script."""
    groups = []
    for group in picture.groups:
        known = [bucket for bucket in group.buckets if bucket.mean is not None]
        about: dict[str, Any] = {"n": group.name, "x": [_short(picture.x(bucket)) for bucket in known]}
        about["m"] = [_short(bucket.mean) for bucket in known]
        if group.has_band:
            about.update(l=[_short(bucket.low) for bucket in known], h=[_short(bucket.high) for bucket in known])
        groups.append(about)
    return {"a": [picture.axis.low, picture.axis.high], "f": picture.format, "x": picture.x_name, "g": groups}


def _behind(picture: Picture, y: Axis, group: MergedCurve, number: int) -> Iterator[Html]:
    """Yield the range of the group, single processes, and undone points."""
    if group.has_band:
        yield _path(_band(picture, y, group.buckets), f"band c{number}")
    for lines, kind in ((group.undone, "undone"), (group.lines, "odd" if group.are_odd else "one")):
        for line in lines:
            yield _path(_curve(picture, y, line.buckets), f"{kind} c{number}", element("title", line.name))


def _in_front(picture: Picture, y: Axis, group: MergedCurve, number: int) -> Iterator[Html]:
    yield _path(_curve(picture, y, group.buckets), f"all c{number}")
    known = [bucket for bucket in group.buckets if bucket.mean is not None]
    if len(known) <= FEW:
        dots = "".join(f"M{x} {down}h0" for x, down in _points(picture, y, known))
        yield _path(dots, f"dots c{number}")


def _gaps(picture: Picture) -> Iterator[Html]:
    places = {
        _across(picture.axis, picture.x(bucket))
        for group in picture.groups
        for one in (group.buckets, *(line.buckets for line in group.undone))
        for bucket in one
        if bucket.gaps
    }
    if places:
        yield _path("".join(f"M{place} {HEIGHT}v-24" for place in sorted(places)), "gap")


def _segments(buckets: Sequence[Bucket]) -> Iterator[list[Bucket]]:
    """Yield neighbouring buckets with finite points: a curve has a hole where it has none."""
    for is_known, some in groupby(buckets, key=lambda bucket: bucket.mean is not None):
        if is_known:
            yield list(some)


def _curve(picture: Picture, y: Axis, buckets: Sequence[Bucket]) -> str:
    return "".join(_polyline(_points(picture, y, some)) for some in _segments(buckets))


def _band(picture: Picture, y: Axis, buckets: Sequence[Bucket]) -> str:
    parts = []
    for some in _segments(buckets):
        above = [(_across(picture.axis, picture.x(bucket)), _down(y, bucket.high or 0.0)) for bucket in some]
        below = [(_across(picture.axis, picture.x(bucket)), _down(y, bucket.low or 0.0)) for bucket in some]
        if above != below and len(some) > 1:
            parts.append(f"{_polyline(above + below[::-1])}Z")
    return "".join(parts)


def _points(picture: Picture, y: Axis, buckets: Sequence[Bucket]) -> list[tuple[int, int]]:
    return [(_across(picture.axis, picture.x(bucket)), _down(y, bucket.mean or 0.0)) for bucket in buckets]


def _polyline(points: Sequence[tuple[int, int]]) -> str:
    """Return a path; one point is drawn as a dot."""
    places = [place for place, _ in groupby(points)]
    if len(places) == 1:
        return f"M{places[0][0]} {places[0][1]}h0"
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _across(axis: Axis, value: float) -> int:
    return round(WIDTH * axis.at(value))


def _down(axis: Axis, value: float) -> int:
    return round(HEIGHT * (1 - axis.at(value)))


def _path(d: str, class_: str, title: Html | None = None) -> Html:
    if not d:
        return Html()
    return element("path", d=Html(d), class_=class_) if title is None else element("g", title, _path(d, class_))


def _y_labels(axis: Axis) -> Iterator[Html]:
    for tick in axis.ticks:
        yield element("span", axis.format(tick), class_="y", style=f"top:{100 - 100 * axis.at(tick):.1f}%")


def _x_labels(axis: Axis) -> Iterator[Html]:
    for tick in axis.ticks:
        place = 100 * axis.at(tick)
        class_ = "x last" if place > 93 else "x first" if place < 4 else "x"
        yield element("span", axis.format(tick), class_=class_, style=f"left:{place:.1f}%")


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def legend(picture: Picture) -> Html:
    """Return the names of the curves with their last values."""
    entries = []
    for number, group in enumerate(picture.groups):
        value = None if group.last is None else element("b", FORMATS[picture.format](group.last))
        entries.append(element("span", element("i", class_=f"c{number}"), f"{group.name} ", value))
    if picture.y.is_log:
        entries.append(element("span", "logarithmic"))
    return element("div", *entries, class_="legend")
