"""The tables of a report: processes, servers, events, settings, nodes; and the last log lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from clusterctl.observe.record.model import Mark, ProcessRecord, RunRecord
from clusterctl.report import formats
from clusterctl.report.figures import frame
from clusterctl.report.html import Html, element, shortened, table

MOST_EVENTS = 300
MOST_OPEN = 20
USUAL = ("phase", "saved", "copying", "copied")
MOST_AGES = 40
MOST_TABLES = 100
LOG_CHARACTERS = 400_000  # of all processes together
LONGEST_LINE = 400
HEADINGS = (
    *("process", "node", "state", "restarts", "step", "loss", "samples/s", "compute", "wait", "wire"),
    *("cpu", "memory", "exit code"),
)
ALWAYS = 4  # columns that are shown in any case
UNKNOWN = "\u2013"


def processes(record: RunRecord) -> Html:
    """Return the newest figures of every process, without the columns that no process has."""
    rows = [list(_process(one)) for one in record.processes]
    used = [i for i in range(len(HEADINGS)) if i < ALWAYS or any(row[i] not in (UNKNOWN, "") for row in rows)]
    shown = ([row[i] for i in used] for row in rows)
    return table([HEADINGS[i] for i in used], shown, numeric=range(3, len(used)))


def _process(process: ProcessRecord) -> Iterator[str | Html]:
    known = process.figures
    state = element("span", process.state, class_=f"state t-{process.state}" if process.state.isalpha() else "state")
    yield from (process.name, f"{process.node.label} {process.node.where}", state, formats.whole(process.restarts))
    yield formats.whole(known.get("step"))
    yield from (formats.number(known.get("loss")), formats.number(known.get("samples_per_s")))
    yield from (formats.share(known.get("compute")), formats.share(known.get("wait")), formats.share(known.get("wire")))
    yield from (formats.number(known.get("cpu")), formats.amount(known.get("memory")))
    yield "" if process.exit_code is None else str(process.exit_code)


def staleness(record: RunRecord) -> Html | None:
    """Return the pushes by staleness, as bars; and how many were lost."""
    pushes: Counter[int] = Counter()
    for server in record.pservers:
        for age, count in server.figures.get("staleness", ()):
            pushes[age] += count
    total = sum(pushes.values())
    lost = max((server.figures.get("lost", 0) for server in record.pservers), default=0)
    if not total and not lost:
        return None
    most = max(pushes.values(), default=0)
    shown = sorted(pushes.items())[:MOST_AGES]
    rows = [
        (formats.whole(age), formats.whole(count), formats.share(count / total), _bar(count / most))
        for age, count in shown
        if most
    ]
    return element(
        "section",
        element("h3", "Staleness of pushes"),
        table(("updates behind", "pushes", "share", ""), rows, numeric=(0, 1, 2)) if rows else None,
        element("p", f"{formats.whole(lost)} pushes were lost with a pserver.", class_="note") if lost else None,
    )


def _bar(share: float) -> Html:
    return element("span", element("i", style=f"width:{100 * share:.1f}%"), class_="hbar")


def sparse_tables(record: RunRecord) -> Html | None:
    """Return the newest counts of each sparse table, summed over the pservers."""
    sums: dict[str, Counter[str]] = {}
    for server in record.pservers:
        for counts in server.figures.get("tables", ()):
            sums.setdefault(counts["name"], Counter()).update({k: v for k, v in counts.items() if k != "name"})
    if not sums:
        return None
    names = list(dict.fromkeys(name for counts in sums.values() for name in counts))[:12]
    rows = [
        (shortened(name, 100), *(_count_of(kind, counts.get(kind)) for kind in names))
        for name, counts in list(sums.items())[:MOST_TABLES]
    ]
    title = element("h3", "Sparse tables")
    headings = ("table", *(shortened(name, 40).replace("_", " ") for name in names))
    return element("section", title, table(headings, rows, numeric=range(1, len(headings)), wide=0))


def _count_of(kind: str, value: int | None) -> str:
    return formats.amount(value) if kind == "bytes" else formats.whole(value)


def events(record: RunRecord) -> Html | None:
    """Return what happened, in order of time; of many events, those of every good run are folded away."""
    marks = record.marks
    if len(marks) <= MOST_OPEN:
        return _events(record, marks) if marks else None
    odd = [mark for mark in marks if mark.kind not in USUAL]
    every = element("details", element("summary", f"all {len(marks):,} events"), _events(record, marks))
    return element("div", _events(record, odd) if odd else None, every)


def _events(record: RunRecord, marks: Sequence[Mark]) -> Html:
    """Return a table of events; of very many the first and the last."""
    left_out = max(0, len(marks) - MOST_EVENTS)
    if left_out:
        marks = [*marks[: MOST_EVENTS // 2], *marks[-MOST_EVENTS // 2 :]]
    dated = frame(record).is_long
    rows = [(formats.clock(mark.t, dated=dated), shortened(mark.line, LONGEST_LINE)) for mark in marks]
    more = element("p", f"{left_out:,} events in the middle are left out.", class_="note") if left_out else None
    return element("div", table(("time", "event"), rows, wide=1), more)


def setup(record: RunRecord) -> Html:
    """Return what ran: the arguments, the settings, the names in ENV, and the workspace."""
    rows: list[tuple[str | Html, str | Html]] = []
    if record.workspace:
        rows.append(("workspace", record.workspace))
    words = " ".join(shortened(word) for word in record.arguments)
    rows.append(("arguments", element("code", words) if words else "none"))
    rows += [(name, element("code", value)) for name, value in record.settings.items()]
    if record.env:
        rows.append(("ENV (names only)", element("code", ", ".join(record.env))))
    return table(("", ""), rows, wide=1)


def nodes(record: RunRecord) -> Html:
    """Return the nodes with their clocks and versions."""
    names = list(dict.fromkeys(name for node in record.nodes for name in node.versions))[:20]
    rows = [
        (
            f"{one.node.label} {one.node.where}",
            "no" if one.problem is not None else "yes",
            _offset(one.offset_s, one.margin_s),
            *(shortened(one.versions.get(name, "\u2013"), 30) for name in names),
        )
        for one in record.nodes
    ]
    return table(("node", "answered", "clock", *(shortened(name, 40) for name in names)), rows)


def _offset(offset_s: float | None, margin_s: float | None) -> str:
    if offset_s is None:
        return "\u2013"
    if abs(offset_s) <= max(margin_s or 0.0, 0.05):
        return "correct"
    return f"{formats.duration(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead'}"


def logs(record: RunRecord) -> Html | None:
    """Return the last lines of every process, those of the cause and of failed processes open."""
    known = [process for process in record.processes if process.tail]
    if not known:
        return None
    room, dated = LOG_CHARACTERS // len(known), frame(record).is_long
    cause = record.cause and record.process(record.cause.role, record.cause.rank)
    return element(
        "div", *(_log(one, room, is_open=one is cause or one.state == "failed", dated=dated) for one in known)
    )


def _log(process: ProcessRecord, room: int, *, is_open: bool, dated: bool) -> Html:
    lines: list[Html] = []
    for line in reversed(process.tail):
        text = shortened(line.text, LONGEST_LINE)
        room -= len(text)
        if room < 0:
            break
        lines.append(element("span", element("time", formats.clock(line.t, dated=dated)), f" {text}", class_="line"))
    where = element("small", f" {process.node.label} {process.node.where} \u00b7 {process.state}")
    return element(
        "details", element("summary", process.name, where), element("pre", *reversed(lines)), open=is_open or None
    )


def metrics_left_out(names: Iterable[str]) -> Html | None:
    """Name the metrics that have no chart, because there are too many."""
    words = ", ".join(shortened(name, 60) for name in list(names)[:200])
    return element("p", f"Without a chart: {words}.", class_="note") if words else None
