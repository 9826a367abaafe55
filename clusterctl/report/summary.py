"""The top of a report, as text: the outcome, the figures, the first cause with its evidence, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterctl.common.curves import Bucket
from clusterctl.observe.record.compare import Metric, metrics
from clusterctl.observe.record.marks import warning_text
from clusterctl.observe.record.model import CauseRecord, RunRecord
from clusterctl.report import formats
from clusterctl.report.html import Html, element, shortened, table

LONGEST_NAME = 100
OUTCOMES = {
    "succeeded": "Succeeded",
    "failed": "Failed",
    "stopped": "Stopped",
    "lost": "Lost",
    "running": "Running",
    "starting": "Starting",
}
SYMBOLS = {"succeeded": "\u2713", "failed": "\u2717", "lost": "\u2717", "stopped": "\u25a0"}


def best_of(record: RunRecord) -> tuple[str, str] | None:
    """Return the metric of KEEP_BEST, and "max" or "min"."""
    name, _, way = record.settings.get("KEEP_BEST", "").rpartition(":")
    return (name, way) if name and way in ("max", "min") else None


def summary(record: RunRecord) -> Html:
    known = metrics(record)
    label = f" \u00b7 {record.label}" if record.label else ""
    return element(
        "header",
        element("p", f"{record.job} \u00b7 run {int(record.run)}{label}", class_="job"),
        element("h1", element("span", SYMBOLS.get(record.state, "\u25b6"), class_="badge"), f" {headline(record)}"),
        element("p", " ".join(sentences(record, known))),
        *(element("p", line, class_="note warn") for line in doubts(record)),
        cause_card(record),
        metric_table(record, known),
        class_=f"o-{record.state if record.state in OUTCOMES else 'unknown'}",
    )


def headline(record: RunRecord) -> str:
    """Return the outcome and the duration in one line."""
    outcome = OUTCOMES.get(record.state, "State unknown")
    took = formats.duration(record.duration_s)
    if record.duration_s is None:
        return outcome
    if record.is_live:
        return f"{outcome} for {took} so far"
    return f"{outcome} after {took}" if record.ended_t is not None else f"{outcome}; the end is not known"


def sentences(record: RunRecord, known: Iterable[Metric]) -> Iterator[str]:
    """Yield the facts of the run as sentences."""
    mode = f", mode {record.mode}" if record.mode else ""
    kinds = [_count(len(some), some[0].role) for some in (record.trainers, record.pservers) if some]
    yield f"{' and '.join(kinds) or 'No processes'} on {_count(len(record.nodes), 'node')}{mode}."
    if record.started_t is not None:
        ended = f", ended {formats.moment(record.ended_t)}" if record.ended_t is not None else ""
        yield f"Started {formats.moment(record.started_t)}{ended}."
    yield from _progress(record)
    best = best_of(record)
    for one in known:
        way = "min" if one.name == "loss" else best[1] if best and best[0] == one.name else None
        if way is not None:
            yield _metric_sentence(one, way, "Newest" if record.is_live else "Final")
    yield from _saves(record)
    if record.is_live:
        yield f"The run continues; this report shows it at {formats.moment(record.read_t)}."


def _progress(record: RunRecord) -> Iterator[str]:
    step, pass_ = record.newest("step"), record.newest("pass")
    if step is not None:
        where = "" if pass_ is None else f"pass {formats.whole(pass_)}, "
        yield f"Last reported: {where}step {formats.whole(step)}."
    restarts = sum(process.restarts for process in record.processes)
    if restarts:
        yield f"{_count(restarts, 'restart')}."
    if record.resumed is not None:
        job = record.resumed.get("job")
        source = f"run {int(record.resumed['run'])}" + (f" of {job}" if job else "")
        yield f"Resumed from {source} at step {formats.whole(record.resumed['step'])}."


def _metric_sentence(one: Metric, way: str, which: str) -> str:
    best = one.low if way == "min" else one.high
    last = "not finite" if one.final is None else formats.number(one.final)
    if best is None:
        return f"{which} {one.name}: {last}."
    return f"{which} {one.name}: {last}; best: {formats.number(best.mean)} at {place(best)}."


def _saves(record: RunRecord) -> Iterator[str]:
    if record.saved:
        yield f"Newest model: {record.saved[-1]}."
    if record.checkpoints:
        yield f"Newest checkpoint: {record.checkpoints[-1]}."


def place(bucket: Bucket) -> str:
    """Return the steps of a bucket, or its time if it has none."""
    if bucket.step0 is None or bucket.step1 is None:
        return formats.clock(bucket.t0)
    one = bucket.step0 == bucket.step1
    first = formats.whole(bucket.step0)
    return f"step {first}" if one else f"steps {first}\u2013{formats.whole(bucket.step1)}"


def doubts(record: RunRecord) -> Iterator[str]:
    """Yield what makes the run or this report doubtful."""
    for node in record.silent:
        yield (
            f"{node.node.label} ({node.node.where}) did not answer: {shortened(node.problem or '')}. "
            "What only this node knows is missing; the rest is shown."
        )
    for left in record.members.left_out:
        yield f"node{left['node']} was left out of the run: {shortened(left['message'])}"
    for warning in record.warnings:
        yield f"Warning: {shortened(warning_text(warning, dated=True))}"


def cause_card(record: RunRecord) -> Html | None:
    """Return the first cause with its evidence."""
    cause = record.cause
    if cause is None:
        if record.state in ("failed", "lost"):
            return element("p", "No node that answered knows a cause; see the last log lines below.", class_="note")
        return None
    lines = "\n".join(f"{formats.clock(line.t)}  {shortened(line.text)}" for line in cause.lines)
    return element(
        "section",
        element("h2", "First cause"),
        element("p", cause.headline, class_="cause"),
        element("p", f"At {formats.moment(cause.t)}", _subject(cause), class_="when"),
        element("pre", Html("".join(_escaped_lines(lines)))) if lines else None,
        *(element("p", note) for note in cause.notes),
        element("p", element("b", "What to do: "), cause.advice) if cause.advice else None,
        *_how_to_resume(record, cause),
        class_="card",
    )


def _how_to_resume(record: RunRecord, cause: CauseRecord) -> Iterator[Html]:
    if record.is_live or not record.checkpoints:
        return
    command = element("code", f"clusterctl start --resume --job_workspace {record.job}")
    yield element("p", element("b", "To resume"), f" from {record.checkpoints[-1]}: ", command)
    if cause.role == "trainer":
        command = element("code", f"clusterctl start WORKSPACE --resume-from {record.job}")
        yield element("p", element("b", "With a corrected program"), ": ", command)


def _escaped_lines(lines: str) -> Iterator[Html]:
    for line in lines.split("\n"):
        yield element("span", line, class_="line")


def _subject(cause: CauseRecord) -> str | None:
    if cause.node is None:
        return None
    return f" \u00b7 {f'{cause.role}{cause.rank}@' if cause.role else ''}node{cause.node}"


def metric_table(record: RunRecord, known: list[Metric]) -> Html | None:
    """Return the final, lowest and highest value of the loss and of every metric."""
    if not known:
        return None
    rows = [
        (
            shortened(one.name, LONGEST_NAME),
            "not finite" if one.final is None else formats.number(one.final),
            *_extreme(one.low),
            *_extreme(one.high),
            formats.whole(one.gaps) if one.gaps else "",
        )
        for one in known
    ]
    width = 7 if any(one.gaps for one in known) else 6
    headings = ("metric", "final", "lowest", "at", "highest", "at", "not finite")[:width]
    return table(headings, (row[:width] for row in rows), numeric=range(1, width), wide=0)


def _extreme(bucket: Bucket | None) -> tuple[str, str]:
    return ("\u2013", "") if bucket is None else (formats.number(bucket.mean), place(bucket))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
