"""A curve as terminal text and as an SVG picture. Pure functions of the points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from clusterctl.cli.console import human_count

Point = tuple[float, float]
EIGHTHS = " ▁▂▃▄▅▆▇█"
WIDTH_PX, HEIGHT_PX, MARGIN_PX = 720, 360, 56


def finite(points: Sequence[Point]) -> list[Point]:
    """Return the points that can be drawn: the loss is NaN once training diverges."""
    return [(x, y) for x, y in points if math.isfinite(y)]


def resample(points: Sequence[Point], count: int) -> list[Point]:
    """Return at most `count` points in order of x, each the mean of the points in one of `count` equal x intervals."""
    points = finite(points)
    if not points:
        return []
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    interval = ((right - left) / count) or 1.0
    bins: dict[int, list[Point]] = {}
    for x, y in points:
        bins.setdefault(min(count - 1, int((x - left) / interval)), []).append((x, y))
    return [
        (sum(x for x, _ in bin_) / len(bin_), sum(y for _, y in bin_) / len(bin_)) for _, bin_ in sorted(bins.items())
    ]


def interpolate(points: Sequence[Point], count: int) -> list[float]:
    """Interpolate linearly between `points`, sorted by x, at `count` equally spaced x values; return the y values."""
    heights = []
    right = 0
    for i in range(count):
        x = points[0][0] + (points[-1][0] - points[0][0]) * i / (count - 1)
        while right < len(points) - 1 and points[right][0] < x:
            right += 1
        (x0, y0), (x1, y1) = points[max(0, right - 1)], points[right]
        heights.append(y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return heights


def terminal_chart(
    points: Sequence[Point], *, width: int = 60, height: int = 8, x_text: Callable[[float], str] = "step {:,.0f}".format
) -> list[str]:
    """Draw filled columns of eighth blocks with the scale on the left; empty for fewer than two points.

    `x_text` formats the two ends of the x axis.
    """
    means = resample(points, width)
    if len(means) < 2:
        return []
    columns = interpolate(means, width)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    levels = [1 + round((y - low) / span * (height * 8 - 1)) for y in columns]
    lines = []
    for row in range(height - 1, -1, -1):
        scale = high if row == height - 1 else low if row == 0 else None
        label = f"{_scale(scale):>7}" if scale is not None else " " * 7
        cells = "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels)
        lines.append(f"{label} ┤{cells}".rstrip())
    first, last = x_text(means[0][0]), x_text(means[-1][0])
    return [*lines, f"{'':8}└{'─' * width}", f"{'':9}{first}{last:>{max(1, width - len(first))}}"]


def _scale(value: float) -> str:
    """Format a value in at most seven characters."""
    return f"{value:.2f}" if abs(value) < 1000 else human_count(value)


def svg_chart(points: Sequence[Point], title: str, x_label: str, y_label: str) -> str:
    """Draw one line over a light grid as a self-contained SVG document."""
    points = finite(points)
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    inner_w, inner_h = WIDTH_PX - 2 * MARGIN_PX, HEIGHT_PX - 2 * MARGIN_PX

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / ((right - left) or 1)
        up = (y - low) / ((high - low) or 1)
        return MARGIN_PX + across * inner_w, HEIGHT_PX - MARGIN_PX - up * inner_h

    grid = []
    for part in range(5):
        y = low + (high - low) * part / 4
        x = left + (right - left) * part / 4
        _, at_y = to_pixels(left, y)
        at_x, _ = to_pixels(x, low)
        grid.append(f'<line x1="{MARGIN_PX}" x2="{WIDTH_PX - MARGIN_PX}" y1="{at_y:.1f}" y2="{at_y:.1f}"/>')
        grid.append(f'<text x="{MARGIN_PX - 8}" y="{at_y + 4:.1f}" text-anchor="end">{y:.2f}</text>')
        grid.append(f'<text x="{at_x:.1f}" y="{HEIGHT_PX - MARGIN_PX + 18}" text-anchor="middle">{x:,.0f}</text>')
    path = " ".join("{:.1f},{:.1f}".format(*to_pixels(x, y)) for x, y in points)
    middle = WIDTH_PX / 2
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{HEIGHT_PX}"
 font-family="sans-serif" font-size="12" fill="#444">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{middle}" y="28" text-anchor="middle" font-size="15" fill="#111">{escape(title)}</text>
<g stroke="#e4e4e4">{"".join(grid[0::3])}</g>
<g>{"".join(grid[1::3])}{"".join(grid[2::3])}</g>
<polyline points="{path}" fill="none" stroke="#1f6feb" stroke-width="2" stroke-linejoin="round"/>
<text x="{middle}" y="{HEIGHT_PX - 12}" text-anchor="middle">{escape(x_label)}</text>
<text transform="translate(16 {HEIGHT_PX / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>
</svg>
"""
