"""Curves as a terminal chart, a sparkline, and an SVG image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cli.chart import resample, svg_chart, terminal_chart
from clusterctl.cli.screen.screen import BARS, sparkline

CURVE = [(float(step), 7.0 / (1 + step / 20)) for step in range(200)]
numbers = st.floats(-1e9, 1e9)


def test_the_terminal_chart_falls_from_the_top_left_to_the_bottom_right() -> None:
    lines = terminal_chart(CURVE, width=40, height=6)
    assert len(lines) == 8
    assert [line.strip().split()[0] for line in (lines[0], lines[5])] == ["6.39", "0.65"]
    assert "█" in lines[0][:14]
    assert "█" not in lines[0][20:]
    assert lines[6].strip() == "└" + "─" * 40
    assert len(lines[7]) == 9 + 40


def steps(values: Sequence[float]) -> list[tuple[int, float]]:
    return list(enumerate(values))


def test_fewer_than_two_points_make_no_curve() -> None:
    assert terminal_chart([]) == terminal_chart([(0, 1.0)]) == []


def test_a_flat_curve_is_flat() -> None:
    assert terminal_chart([(0, 2.0), (1, 2.0), (2, 2.0)], width=3, height=2)[1] == "   2.00 ┤▁▁▁"
    assert sparkline(steps([2.0] * 5), 5) == BARS[0] * 5


@given(st.lists(st.tuples(numbers, numbers), max_size=200), st.integers(1, 60))
def test_a_resampled_curve_has_at_most_the_given_number_of_points_in_order_and_in_range(
    points: list[tuple[float, float]], count: int
) -> None:
    short = resample(points, count)
    assert len(short) <= min(len(points), count)
    assert [x for x, _ in short] == sorted(x for x, _ in short)
    if points:
        slack = 1e-6 * max(1.0, *(abs(y) for _, y in points))
        assert min(y for _, y in points) - slack <= min(y for _, y in short)
        assert max(y for _, y in short) <= max(y for _, y in points) + slack


@given(st.lists(st.tuples(numbers, numbers), max_size=150), st.integers(1, 80), st.integers(1, 12))
def test_every_curve_can_be_drawn(points: list[tuple[float, float]], width: int, height: int) -> None:
    lines = terminal_chart(points, width=width, height=height)
    assert len(lines) in (0, height + 2)
    assert all(len(line.partition("┤")[2]) <= width for line in lines[:height])


@given(st.lists(numbers, max_size=300), st.integers(1, 60))
def test_a_sparkline_fits(values: list[float], width: int) -> None:
    line = sparkline(steps(values), width)
    assert len(line) <= width
    assert bool(line) is bool(values)
    assert set(line) <= set(BARS)


def test_a_sparkline_shows_the_shape_of_the_curve() -> None:
    assert sparkline(steps([1, 2, 3, 4, 5, 6, 7, 8]), 8) == BARS
    assert sparkline(steps(range(800)), 8) == BARS


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("draw", [lambda points: sparkline(points, 8), terminal_chart], ids=["sparkline", "chart"])
def test_a_diverging_loss_is_still_drawn(loss: float, draw: object) -> None:
    """That is when somebody looks at the curve."""
    assert callable(draw)
    assert draw(steps([3.0, 2.0, loss, 1.0]))


def text_of(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_the_image_is_well_formed_and_labelled() -> None:
    svg = svg_chart(CURVE, "a <b> & c", "step", "loss < 7")
    assert {"a <b> & c", "step", "loss < 7", "7.00", "199"} <= set(text_of(svg))
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_the_line_stays_within_the_image() -> None:
    root = ElementTree.fromstring(svg_chart(CURVE, "t", "x", "y"))
    (line,) = [element for element in root.iter() if element.tag.endswith("polyline")]
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(points) == len(CURVE)
    assert all(0 <= x <= float(root.attrib["width"]) and 0 <= y <= float(root.attrib["height"]) for x, y in points)
    assert points[0][1] < points[-1][1], "a falling loss goes down"


@pytest.mark.parametrize("points", [[], [(5.0, 1.0)], [(1.0, 2.0), (2.0, 2.0)]])
def test_an_image_of_almost_no_data_is_well_formed(points: list[tuple[float, float]]) -> None:
    assert len(text_of(svg_chart(points, "t", "x", "y"))) > 3
