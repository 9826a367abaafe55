"""Draw docs/architecture.svg from the import tables of tests/test_house.py and the flows below.

python docs/make_architecture.py

Thin arrows are imports. An arrow is left out if a chain of others implies it. Thick arrows are flows between processes
and machines; they are listed here, since no import shows them. A part that a table names and that has no place here is
an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_house import INSIDE_AGENT, INSIDE_RUNTIME, MAY_IMPORT  # noqa: E402

PICTURE = Path(__file__).with_name("architecture.svg")
Table = Mapping[str, tuple[str, ...]]
Point = tuple[float, float]

WIDTH, HEIGHT = 1340, 890
BOX_HEIGHT = 34.0


class Box(NamedTuple):
    """`x` and `y` are the middle of the box."""

    x: float
    y: float
    width: float = 96.0


class Panel(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    title: str


class Flow(NamedTuple):
    """`ends` are the parts, as `panel/part`, or OTHER_NODES; `points` is the path between their boxes."""

    ends: tuple[str, str]
    points: tuple[Point, ...]
    label: tuple[str, ...]
    at: Point
    both_ways: bool = True


OTHER_NODES = "other nodes"
PANELS = {
    "control": Panel(20, 20, 610, 746, "the control machine"),
    "agent": Panel(720, 20, 500, 382, "each node: agent/"),
    "runtime": Panel(720, 424, 500, 342, "each node: runtime/, torch/"),
    OTHER_NODES: Panel(1262, 20, 58, 746, ""),
    "common": Panel(20, 806, 1300, 66, "common/: used on both sides; transfer/: used on the nodes"),
}
BOXES = {
    "control": {
        "cli": Box(330, 64, 150),
        "api": Box(330, 118, 70),
        "ranks": Box(60, 180, 66),
        "launch": Box(180, 180),
        "setup": Box(288, 180),
        "export": Box(378, 180, 70),
        "report": Box(460, 180, 78),
        "escape": Box(575, 180, 78),
        "check": Box(180, 284),
        "dispatch": Box(294, 284),
        "documents": Box(419, 284, 100),
        "observe": Box(400, 340, 84),
        "prune": Box(490, 340, 66),
        "collect": Box(572, 284, 84),
        "fabric": Box(168, 390, 62),
        "cluster": Box(420, 390),
        "certificates": Box(180, 500, 104),
        "inventory": Box(320, 500),
        "transport": Box(550, 500),
        "schedulers": Box(230, 552),
        "fake": Box(100, 604),
        "config": Box(320, 604),
        "templates": Box(100, 716),
        "errors": Box(320, 716),
        "torch": Box(1150, 478),  # beside the runtime, which it extends
    },
    "agent": {
        "boot": Box(790, 80),
        "main": Box(790, 134),
        "dispatch": Box(1070, 134),
        "operations": Box(790, 192, 104),
        "entry": Box(960, 192),
        "packages": Box(770, 254),
        "replication": Box(790, 314, 104),
        "supervisor": Box(920, 254, 110),
        "relay": Box(1070, 254),
        "lead": Box(920, 314),
        "tls": Box(1016, 314, 62),
        "node": Box(1100, 314, 74),
        "peer": Box(1182, 314, 62),
        "event_loop": Box(1016, 372, 104),
        "gpus": Box(1112, 372, 58),
    },
    "runtime": {
        "connector": Box(980, 478),
        "main_guard": Box(1120, 478),
        "local": Box(980, 532),
        "pserver": Box(835, 600),
        "trainer": Box(1110, 600),
        "supervisor_socket": Box(819, 668, 140),
        "state": Box(921, 668, 48),
        "checkpoint": Box(1001, 668, 92),
        "store": Box(1080, 668, 50),
        "stream": Box(1142, 668, 60),
        "shm": Box(1196, 668, 38),
        "modes": Box(800, 730, 66),
        "table": Box(962, 730, 84),
        "environment": Box(1078, 730, 116),
        "wire": Box(1178, 730, 62),
    },
}
# Without a box: the trivial entry point, the panels themselves, and the two modules that all of the runtime imports.
WITHOUT_BOX = {
    "control": {"__main__", "common", "agent", "runtime"},
    "agent": set(),
    "runtime": {"arrays", "errors"},
}
# `transfer` shares the panel of `common`.
WHOLE = {
    part: tuple(dict.fromkeys("common" if target == "transfer" else target for target in targets))
    for part, targets in MAY_IMPORT.items()
    if part != "transfer"
}
TABLES: dict[str, Table] = {"control": WHOLE, "agent": INSIDE_AGENT, "runtime": INSIDE_RUNTIME}

# Imports whose arrow would run through other boxes take this path instead.
DETOURS: dict[tuple[str, str], tuple[Point, ...]] = {
    ("export", "escape"): ((405, 163), (405, 147), (560, 147), (560, 163)),
    ("cli", "export"): ((374, 81), (374, 163)),
    ("cli", "fabric"): ((255, 74), (124, 74), (124, 390), (137, 390)),
    ("api", "fake"): ((295, 112), (104, 112), (104, 587)),
    ("api", "dispatch"): ((339, 135), (339, 226), (318, 226), (318, 267)),
    ("dispatch", "cluster"): ((325, 301), (325, 364), (386, 364), (386, 373)),
    ("check", "documents"): ((212, 301), (212, 316), (385, 316), (385, 301)),
    ("report", "observe"): ((484, 197), (484, 311), (425, 311), (425, 323)),
    ("documents", "schedulers"): ((374, 301), (374, 308), (345, 308), (345, 430), (262, 430), (262, 535)),
    ("api", "collect"): ((365, 118), (510, 118), (510, 238), (572, 238), (572, 267)),
    ("api", "escape"): ((365, 110), (590, 110), (590, 163)),
    ("fabric", "schedulers"): ((168, 407), (168, 445), (250, 445), (250, 535)),
    ("ranks", "launch"): ((60, 163), (60, 130), (150, 130), (150, 163)),
    ("launch", "certificates"): ((132, 180), (116, 180), (116, 500), (128, 500)),
    ("errors", "common"): ((320, 733), (320, 806)),
    ("collect", "runtime"): ((614, 284), (656, 284), (656, 452), (720, 452)),
    ("torch", "runtime"): ((1102, 478), (1028, 478)),
    ("agent", "common"): ((720, 384), (704, 384), (704, 806)),
    ("runtime", "common"): ((970, 766), (970, 806)),
}
FLOWS = (
    Flow(
        ("control/transport", "agent/boot"),
        ((598, 500), (680, 500), (680, 80), (742, 80)),
        ("SSH: one command", "for each operation"),
        (622, 532),
    ),
    Flow(("agent/operations", "agent/entry"), ((842, 192), (912, 192)), ("starts",), (876, 184), both_ways=False),
    Flow(("agent/relay", OTHER_NODES), ((1118, 254), (1262, 254)), ("TLS: the workspace",), (1192, 246)),
    Flow(
        ("agent/lead", OTHER_NODES),
        ((892, 331), (892, 396), (1240, 396), (1240, 340), (1262, 340)),
        ("TLS: reports", "and decisions"),
        (1190, 362),
    ),
    Flow(
        ("agent/supervisor", "runtime/supervisor_socket"),
        ((865, 254), (853, 254), (853, 413), (727, 413), (727, 668), (749, 668)),
        ("pipes: output; a socket: events and commands",),
        (1010, 418),
    ),
    Flow(
        ("runtime/trainer", "runtime/pserver"),
        ((1062, 600), (883, 600)),
        ("ZeroMQ, streams,", "shared memory"),
        (972, 576),
    ),
    Flow(("runtime/trainer", OTHER_NODES), ((1158, 600), (1262, 600)), ("ZeroMQ,", "streams"), (1206, 576)),
)

STYLE = """
  svg { --ground: #ffffff; --panel: #f3f5f8; --edge: #c3cad4; --box: #ffffff; --ink: #1c2430; --soft: #5b6675;
        --import: #8a95a5; --flow: #c2410c; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --panel: #161b22; --edge: #3b4452; --box: #0d1117; --ink: #e6edf3; --soft: #9aa5b3;
          --import: #6e7a8a; --flow: #fb923c; } }
  text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .name { font-size: 15px; text-anchor: middle; }
  .title { font-size: 16px; font-weight: 600; }
  .note { font-size: 13px; fill: var(--soft); }
  .label { font-size: 13px; fill: var(--flow); text-anchor: middle; stroke: var(--panel); stroke-width: 4;
           paint-order: stroke; stroke-linejoin: round; }
  .ground { fill: var(--ground); }
  .panel { fill: var(--panel); stroke: var(--edge); }
  .box { fill: var(--box); stroke: var(--soft); }
  .import { fill: none; stroke: var(--import); stroke-width: 1.3; marker-end: url(#import); }
  .flow { fill: none; stroke: var(--flow); stroke-width: 2.6; marker-end: url(#flow); }
  .both { marker-start: url(#flow); }
"""
HEAD = (
    '<marker id="{0}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{1}" markerHeight="{1}" '
    'orient="auto-start-reverse"><path d="M0 1 L9 5 L0 9 z" style="fill: var(--{0})"/></marker>'
)


def main() -> None:
    PICTURE.write_text(draw(), encoding="utf-8")


def draw() -> str:
    check()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="The parts of clusterctl: who imports whom, and what flows between them">',
        f"<style>{STYLE}</style>",
        f"<defs>{HEAD.format('import', 7)}{HEAD.format('flow', 5)}</defs>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
        *(line for panel in PANELS.values() for line in draw_panel(panel)),
        *(path("import", arrow) for panel in TABLES for arrow in arrows(panel)),
        *(path("flow both" if flow.both_ways else "flow", polyline(flow.points)) for flow in FLOWS),
        *(line for boxes in BOXES.values() for name, box in boxes.items() for line in draw_box(name, box)),
        *(line for flow in FLOWS for line in draw_label(flow)),
        *notes(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def check() -> None:
    """Raise ValueError if a table and the places of its parts differ, or if a flow ends at an unknown part."""
    for panel, table in TABLES.items():
        strange = set(table) ^ (set(BOXES[panel]) | WITHOUT_BOX[panel])
        if strange:
            raise ValueError(f"{panel}: {', '.join(sorted(strange))}: in the import table or in BOXES, but not in both")
    known = {f"{panel}/{name}" for panel, boxes in BOXES.items() for name in boxes} | {OTHER_NODES}
    unknown = {end for flow in FLOWS for end in flow.ends} - known
    if unknown:
        raise ValueError(f"flows end at unknown parts: {', '.join(sorted(unknown))}")


def reduced(table: Table) -> list[tuple[str, str]]:
    """Return the imports that no chain of the others implies."""

    def below(part: str) -> set[str]:
        return {part for target in table[part] for part in (target, *below(target))}

    return [
        (part, target)
        for part, targets in table.items()
        for target in targets
        if not any(target in below(other) for other in targets if other != target)
    ]


def arrows(panel: str) -> Iterator[str]:
    boxes = BOXES[panel]
    shown = [arrow for arrow in reduced(TABLES[panel]) if arrow in DETOURS or boxes.keys() >= {*arrow}]
    for source, target in shown:
        if (source, target) in DETOURS:
            yield polyline(DETOURS[source, target])
        elif boxes[source].y == boxes[target].y:
            yield sideways(boxes[source], boxes[target])
        else:
            leaving = sorted({t for s, t in shown if s == source and (s, t) not in DETOURS}, key=lambda t: boxes[t].x)
            coming = sorted({s for s, t in shown if t == target and (s, t) not in DETOURS}, key=lambda s: boxes[s].x)
            start = spread(boxes[source], leaving.index(target), len(leaving)), boxes[source].y + BOX_HEIGHT / 2
            end = spread(boxes[target], coming.index(source), len(coming)), boxes[target].y - BOX_HEIGHT / 2
            yield curve(start, end)


def spread(box: Box, number: int, count: int) -> float:
    """Where arrow `number` of `count` meets the edge of a box, from left to right."""
    return box.x + box.width * 0.7 * ((number + 0.5) / count - 0.5)


def sideways(source: Box, target: Box) -> str:
    sign = 1 if target.x > source.x else -1
    return polyline(((source.x + sign * source.width / 2, source.y), (target.x - sign * target.width / 2, target.y)))


def curve(start: Point, end: Point) -> str:
    across, half = end[0] - start[0], (end[1] - start[1]) / 2
    return f"M{start[0]:g} {start[1]:g} c0 {half:g} {across:g} {half:g} {across:g} {2 * half:g}"


def polyline(points: tuple[Point, ...]) -> str:
    return "M" + " L".join(f"{x:g} {y:g}" for x, y in points)


def path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def text(kind: str, at: Point, words: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{at[0]:g}" y="{at[1]:g}"{more}>{escape(words)}</text>'


def draw_panel(panel: Panel) -> Iterator[str]:
    x, y, width, height, title = panel
    yield f'<rect class="panel" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    yield text("title", (x + 14, y + 25), title)


def draw_box(name: str, box: Box) -> Iterator[str]:
    left, top = box.x - box.width / 2, box.y - BOX_HEIGHT / 2
    yield f'<rect class="box" x="{left:g}" y="{top:g}" width="{box.width:g}" height="{BOX_HEIGHT:g}" rx="5"/>'
    yield text("name", (box.x, box.y + 5), name)


def draw_label(flow: Flow) -> Iterator[str]:
    x, y = flow.at
    yield from (text("label", (x, y + 16 * number), words) for number, words in enumerate(flow.label))


def notes() -> Iterator[str]:
    common = sorted(path.stem for path in (ROOT / "clusterctl" / "common").glob("*.py") if path.stem != "__init__")
    yield text("note", (34, 856), ", ".join(common))
    yield text("note", (1206, 449), "all of it imports errors and arrays", ' text-anchor="end"')
    middle = (1291, 393)
    yield text("title", middle, OTHER_NODES, f' text-anchor="middle" transform="rotate(90 {middle[0]} {middle[1]})"')
    yield path("import", "M440 690 L478 690")
    yield text("note", (488, 694), "imports")
    yield path("flow", "M440 714 L478 714")
    yield text("note", (488, 718), "sends to")
    yield text("note", (440, 742), "implied imports are left out")


if __name__ == "__main__":
    main()
