"""How a run ended, and why."""

from __future__ import annotations

from clusterctl.api.operations.why import document
from clusterctl.api.views import Cause, Outcome
from clusterctl.errors import ClusterctlError, JobFailedError
from clusterctl.observe.record.status import UNKNOWN, unheard
from clusterctl.observe.why.report import WhyReport, advice, headline

STOPPED = "stopped"


def outcome_of(report: WhyReport) -> Outcome:
    known, run = report.explanation, report.members.run
    return Outcome(
        job=report.job,
        run=int(run or 0),
        name=report.members.name,
        state=report.state,
        cause=_cause(report),
        seconds=report.seconds,
        pass_=known.pass_,
        step=known.step,
        checkpoint=known.checkpoint["tag"] if known.checkpoint else None,
        warnings=tuple(warning["message"] for warning in report.warnings),
        document=document(report),
    )


def _cause(report: WhyReport) -> Cause | None:
    cause = report.explanation.cause
    if cause is None or cause.kind == STOPPED:
        return None
    return Cause(
        kind=cause.kind,
        reason=cause.diagnosis.kind,
        headline=headline(report, cause),
        advice=advice(report),
        lines=tuple(line for _, line in cause.lines),
        notes=tuple(report.explanation.notes),
        t=cause.onset,
        node=cause.node,
        role=cause.role,
        rank=cause.rank,
    )


def failure(report: WhyReport) -> ClusterctlError | None:
    """Return the error for a run that has ended without success, or about which nothing is known."""
    outcome = outcome_of(report)
    if outcome.ok:
        return None
    if outcome.state == UNKNOWN and report.errors:
        return unheard(report.errors, len(report.members.nodes))
    words = {"stopped": "was stopped", "lost": "was lost"}.get(outcome.state, outcome.state)
    cause = outcome.cause
    message = f"{outcome.job} run {outcome.run} {words}" + (f": {cause.headline}" if cause else "")
    lines = [f"  | {line}" for line in cause.lines] if cause else []
    details = {"job": outcome.job, "run": outcome.run, "state": outcome.state, "reason": cause and cause.reason}
    hint = cause.advice if cause and cause.advice else f"clusterctl why {outcome.job}"
    return JobFailedError("\n".join([message, *lines]), hint=hint, details=details)
