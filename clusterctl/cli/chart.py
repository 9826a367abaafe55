"""A curve, in the terminal and as a picture. Pure functions from points to text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]
EIGHTHS = " ▁▂▃▄▅▆▇█"
WIDTH_PX, HEIGHT_PX, MARGIN_PX = 720, 360, 56


def resample(points: Sequence[Point], count: int) -> list[Point]:
    """At most `count` points: means of neighbours."""
    if len(points) <= count:
        return list(points)
    parts = [points[len(points) * i // count : len(points) * (i + 1) // count] for i in range(count)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def terminal_chart(points: Sequence[Point], *, width: int = 60, height: int = 8) -> list[str]:
    """Filled columns of eighth blocks with the scale at the left; nothing for fewer than two points."""
    if len(points) < 2:
        return []
    columns = [y for _, y in resample(points, width)]
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    levels = [1 + round((y - low) / span * (height * 8 - 1)) for y in columns]
    lines = []
    for row in range(height - 1, -1, -1):
        scale = high if row == height - 1 else low if row == 0 else None
        label = f"{scale:7.2f}" if scale is not None else " " * 7
        cells = "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels)
        lines.append(f"{label} ┤{cells}".rstrip())
    last = f"{points[-1][0]:,.0f}"
    return [
        *lines,
        f"{'':8}└{'─' * len(columns)}",
        f"{'':9}step {points[0][0]:,.0f}".ljust(9 + width - len(last)) + last,
    ]


def svg_chart(points: Sequence[Point], title: str, x_label: str, y_label: str) -> str:
    """One line over a light grid, as a self-contained SVG document."""
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    inner_w, inner_h = WIDTH_PX - 2 * MARGIN_PX, HEIGHT_PX - 2 * MARGIN_PX

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / ((right - left) or 1)
        up = (y - low) / ((high - low) or 1)
        return MARGIN_PX + across * inner_w, HEIGHT_PX - MARGIN_PX - up * inner_h

    grid = []
    for part in range(5):
        y = low + (high - low) * part / 4
        x = left + (right - left) * part / 4
        _, at_y = place(left, y)
        at_x, _ = place(x, low)
        grid.append(f'<line x1="{MARGIN_PX}" x2="{WIDTH_PX - MARGIN_PX}" y1="{at_y:.1f}" y2="{at_y:.1f}"/>')
        grid.append(f'<text x="{MARGIN_PX - 8}" y="{at_y + 4:.1f}" text-anchor="end">{y:.2f}</text>')
        grid.append(f'<text x="{at_x:.1f}" y="{HEIGHT_PX - MARGIN_PX + 18}" text-anchor="middle">{x:,.0f}</text>')
    path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
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
