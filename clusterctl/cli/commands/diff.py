"""`clusterctl diff`."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence

from clusterctl.api.diff import Comparison, run_to_compare
from clusterctl.api.diff import diff as compare
from clusterctl.cli import style
from clusterctl.cli.console import Console, human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.escape import clean
from clusterctl.inventory import nodeset
from clusterctl.observe.record.compare import Pair, Range, RunDiff
from clusterctl.observe.record.contents import File
from clusterctl.observe.record.references import Reference
from clusterctl.report import formats

MOST_ROWS = 20  # of a section
MOST_PERCENT = 10_000
NARROWEST, WIDEST = 40, 120  # columns, whatever the terminal has
NAME_SHARE = 0.35  # of the width
GAPS = 6  # columns between the four of the table
MISSING = "-"
HEADINGS = ("", "A", "B", "difference")
Row = tuple[str, str, str, str]


def diff(invocation: Invocation, first: str, second: str) -> None:
    with contextlib.ExitStack() as stack:
        sides: list[tuple[Cluster, Reference]] = []
        for text in (first, second):
            if not sides or invocation.scheduled is not None:  # other jobs of a scheduler have other nodes
                cluster = stack.enter_context(invocation.cluster_of(text, whole=True))
            is_scheduled = invocation.scheduled is not None
            named = invocation.run_of(cluster, text) if is_scheduled else run_to_compare(cluster, text)
            sides.append((cluster, named))
        found = compare(sides)
    _show(invocation.console, found.compared)
    for line in _doubts(found):
        invocation.console.warn(line)
    invocation.console.finish(found.document, found.problem)


def _doubts(found: Comparison) -> Iterator[str]:
    for error in found.errors:
        yield f"{error.node} is missing in it: {error.message}"
    for job, by_node in found.changed.items():
        if by_node:
            yield (
                f"{plural(max(by_node.values()), 'file')} of {job} changed on {nodeset(by_node)} since the dispatch; "
                "files are compared as dispatched"
            )


def _show(console: Console, compared: RunDiff) -> None:
    if console.json:
        return
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    for side, record, cause in (("A", compared.a, compared.cause.a), ("B", compared.b, compared.cause.b)):
        console.output(style.join("  ", (side, record.name, style.state(record.state))))
        if cause is not None and not compared.cause.same:  # too long for the table
            console.output(style.cut(clean(f"   first cause: {cause}"), width))
    same: list[str] = []
    rows: list[Row] = []
    is_cut = False
    for title, some in _sections(compared):
        if not some:
            same.append(title)
            continue
        more = len(some) - MOST_ROWS
        rows += [(title, "", "", ""), *((f"  {row[0]}", *row[1:]) for row in some[:MOST_ROWS])]
        rows += [(f"  and {more:,} more", "", "", "")] if more > 0 else []
        is_cut |= more > 0
    if rows:
        console.table(HEADINGS, fitting(rows, width))
    if is_cut:
        console.say("--json shows every difference")
    if same:
        console.output(f"the same: {', '.join(same)}")


def _sections(compared: RunDiff) -> Iterator[tuple[str, list[Row]]]:
    """Yield the title of each section, and a row for each difference."""
    yield "run", [*_texts(compared.facts), *(_figure(pair) for pair in compared.figures if not pair.same)]
    yield "settings", list(_texts(compared.settings))
    yield "arguments", list(_texts(compared.arguments))
    yield "ENV", [(one.name, _set(one.a), _set(one.b), _change(one.a, one.b)) for one in compared.env if not one.same]
    yield "packages", list(_texts(compared.packages))
    yield "files", [(one.name, _sizes(one.a), _sizes(one.b), _change(one.a, one.b)) for one in compared.files]
    yield "metrics", [row for pair in compared.metrics if not pair.same for row in _metric(pair)]


def _texts(pairs: Iterable[Pair[str]]) -> Iterator[Row]:
    """Yield a row for each text that differs. An option of a program may have no value."""
    for pair in pairs:
        if not pair.same:
            cells = [MISSING if text is None else text or "given" for text in (pair.a, pair.b)]
            if pair.name == "outcome":
                cells = [style.state(cell) for cell in cells]
            yield pair.name, cells[0], cells[1], ""


def _figure(pair: Pair[float]) -> Row:
    name, shown = {
        "duration_s": ("duration", formats.duration),
        "samples_per_s": ("samples/s", formats.number),
    }.get(pair.name, (pair.name, formats.whole))
    cells = [MISSING if value is None else shown(value) for value in (pair.a, pair.b)]
    change = _percent(pair.a, pair.b) if shown is not formats.whole else _change_of(pair.a, pair.b)
    return name, cells[0], cells[1], change


def _metric(pair: Pair[Range]) -> Iterator[Row]:
    """Yield the final, lowest and highest value where they differ, but none that looks like the final one."""
    final: list[str] = []
    for at, kind in enumerate(("", " lowest", " highest")):
        a, b = (None if side is None else side[at] for side in (pair.a, pair.b))
        words = [MISSING if side is None else "not finite" for side in (pair.a, pair.b)]
        cells = [word if one is None else formats.number(one) for word, one in zip(words, (a, b), strict=True)]
        if cells != final and (a != b or words[0] != words[1]):
            yield f"{pair.name}{kind}", cells[0], cells[1], _change_of(a, b)
        final = final or cells


def _change_of(a: float | None, b: float | None) -> str:
    if a is None or b is None:
        return ""
    return f"{'+' if b >= a else '-'}{formats.number(abs(b - a))}"


def _percent(a: float | None, b: float | None) -> str:
    percent = 100 * (b - a) / a if a and b is not None else math.nan
    return f"{percent:+.0f}%" if abs(percent) < MOST_PERCENT else ""


def _set(value: bool | None) -> str:
    return "set" if value else MISSING


def _sizes(files: Sequence[File] | None) -> str:
    if not files:
        return MISSING
    return human_bytes(files[0].bytes) if len(files) == 1 else plural(len(files), "version")


def _change(a: object, b: object) -> str:
    if a and b:
        return "changed"
    return style.bad("removed") if a else style.good("added")


def fitting(rows: Sequence[Row], width: int) -> list[Row]:
    """Shorten names and values so that the rows fit into `width` columns. Text of nodes may have any length."""
    name, a, b, change = (max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True))
    name = min(name, int(width * NAME_SHARE))
    left = width - name - change - GAPS
    a = min(a, max(left // 2, left - b))
    return [(_cut(row[0], name), _cut(row[1], a), _cut(row[2], left - a), row[3]) for row in rows]


def _cut(text: str, width: int) -> str:
    """Return the text, without its middle if it is longer. The words of ours that have a colour are short."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - half]}\u2026{text[-half:]}"
