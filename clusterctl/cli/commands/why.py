"""`clusterctl why`: the first cause of a run's end, what followed from it, and what to do."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from clusterctl.api.outcome import explain
from clusterctl.cli import style
from clusterctl.cli.causes import FIRST_CAUSE, corrected_hint, headline, incident_line, warning_lines
from clusterctl.cli.commands import scheduled
from clusterctl.cli.console import Console, human_duration
from clusterctl.cli.invocation import Invocation
from clusterctl.cli.screen.notes import note_lines
from clusterctl.common.schema import END_OF_TIME
from clusterctl.escape import clean
from clusterctl.observe.record.references import run_title
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.report import WhyReport, advice
from clusterctl.schedulers import NoRunError

SHOWN = 5  # incidents of each kind
STATE_WORDS = {
    "stopped": "was stopped",
    "lost": "was lost",
    "unknown": "is in an unknown state",
    "running": "has been running",
    "starting": "has been starting",
}


def why(invocation: Invocation, job: str | None) -> None:
    try:
        _why(invocation, job)
    except NoRunError as none:
        scheduled.explain(invocation, none.job)


def _why(invocation: Invocation, job: str | None) -> None:
    with invocation.cluster_of(job, whole=True) as cluster:
        outcome = explain(cluster, invocation.run_of(cluster, job), invocation.scheduled)
        if not invocation.console.json:
            _show(invocation.console, outcome.report, outside=invocation.scheduled is not None)
        invocation.console.finish(outcome.document, outcome.problem)


def _show(console: Console, report: WhyReport, *, outside: bool) -> None:
    known = report.explanation
    console.say(_first_line(report))
    if known.cause is not None and (known.cause.kind != "stopped" or known.cause.diagnosis.advice):
        _show_cause(console, report, known.cause)
    elif report.state in ("failed", "lost", "unknown"):
        console.say("no node that answered knows a cause; clusterctl logs shows what the processes printed")
    if report.state == "running":
        for line in note_lines(report.seen.processes, None):
            console.say(line)
    still = "now" if report.state in ("starting", "running") else "at the end"
    for word, some in (("before", known.before), (still, known.open)):
        _show_some(console, report, word, some)
    for one in known.open:
        if one.awaited:
            missing = one.process or f"node{one.node}"
            rejoin = f"clusterctl start --rejoin --job_workspace {report.job} --only node{one.node}"
            console.say(f"what to do: the run is waiting for {missing}; when it is fixed: {rejoin}")
    for line in warning_lines(report.warnings):
        console.say(line)
    _show_next(console, report, " in an allocation" if outside else "")


def _first_line(report: WhyReport) -> str:
    known = report.explanation
    if report.members.run is None:
        return f"{report.job} was never started"
    words = style.state(report.state, STATE_WORDS.get(report.state, report.state))
    going_on = report.state in ("running", "starting")
    if going_on and known.cause is not None:
        words, going_on = "is being stopped", False
    elif report.state == "stopped" and (known.cause is None or known.cause.kind == "stopped"):
        words = "was stopped by the user"
        if known.cause is not None and known.cause.diagnosis.kind != "stopped":
            words = f"was stopped because {clean(known.cause.message)},"
            words = words.removesuffix(",") if known.cause.diagnosis.kind == "start_failed" else words
    took = f"{'for' if going_on else 'after'} {human_duration(report.seconds or 0.0)}"
    at = f" · pass {known.pass_}, step {known.step:,}" if known.step is not None and known.pass_ is not None else ""
    line = f"{run_title(report.job, report.members)} " + words + f" {took}{at}"
    if known.cause is None and not known.open and report.state in ("running", "starting", "succeeded"):
        line += f"; nothing has failed{' for good' if known.before else ''}"
    return line


def _show_cause(console: Console, report: WhyReport, cause: Incident) -> None:
    console.output(FIRST_CAUSE + headline(report, cause))
    for t, line in cause.lines:
        console.output(f"  {_moment(t)}  {clean(line)}")
    for note in report.explanation.notes:
        console.say(f"  {note}")
    others = [f"{one.process}@node{one.node}" for one in report.explanation.alike]
    if others:
        console.say(f"failed the same way: {', '.join(others[:SHOWN])}{_more(others)}")
    _show_some(console, report, "then", report.explanation.then)
    for line in _left(report):
        console.say(line)
    remedy = advice(report)
    if remedy:
        console.say(f"what to do: {remedy}")


def _show_some(console: Console, report: WhyReport, word: str, some: Sequence[Incident]) -> None:
    for number, one in enumerate(some[:SHOWN]):
        begin = f"{word}: " if number == 0 else " " * (len(word) + 2)
        more = _more(some) if number == SHOWN - 1 else ""
        console.output(f"{begin}{_moment(one.onset)}  " + incident_line(report, one) + more)


def _more(some: Sequence[object]) -> str:
    return f" (and {len(some) - SHOWN} more)" if len(some) > SHOWN else ""


def _left(report: WhyReport) -> list[str]:
    known, total = report.explanation, len(report.members.nodes)
    words = []
    if known.stopped:
        other = "other " if known.cause and known.cause.process else ""
        words.append(f"{known.stopped} {other}process{'es were' if known.stopped > 1 else ' was'} stopped")
    if known.not_heard_of == ():
        words.append(f"nothing is left running on {total}/{total} nodes")
    elif known.not_heard_of:
        words.append(f"no report from node {list(known.not_heard_of)}")
    return [f"then: {'; '.join(words)}"] if words else []


def _show_next(console: Console, report: WhyReport, where: str) -> None:
    last = _checkpoint(report)
    if report.members.run is None:
        console.say(f"next{where}: clusterctl start --job_workspace {report.job}")
    elif last and report.state in ("failed", "lost", "stopped"):
        resume = f"clusterctl start --job_workspace {report.job} --resume"
        console.say(f"last checkpoint: {last}     next{where}: {resume}")
        cause = report.explanation.cause
        if corrected := corrected_hint(report.job, cause.role if cause else None):
            console.say(corrected)


def _checkpoint(report: WhyReport) -> str | None:
    """Return the tag of the checkpoint that a resume takes: the newest of the run, else the one it began from."""
    last, began = report.explanation.checkpoint, (report.seen.lead or {}).get("resumed")
    if last is not None:
        return str(last["tag"])
    return began.get("tag") if began and not began.get("job") else None


def _moment(t: float) -> str:
    return datetime.datetime.fromtimestamp(min(max(t, 0.0), END_OF_TIME)).strftime("%H:%M:%S.%f")[:-3]
