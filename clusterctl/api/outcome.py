"""How a run ended, and why: its first cause, from the events of all nodes and from a scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterctl.api.opening import CallResult
from clusterctl.api.scheduled import scheduled_part, was_ended
from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import IncidentDocument, WhyDocument, run_label
from clusterctl.errors import ClusterctlError, JobFailedError
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import UNKNOWN, unheard
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.report import WhyReport, advice, headline, why
from clusterctl.observe.why.scheduler import ended_by
from clusterctl.schedulers import JobWatch

STOPPED = "stopped"


@dataclass(frozen=True)
class Cause:
    """The first cause of a run's end, as `clusterctl why` names it.

    `kind` is what happened, such as "exit"; `reason` why, as in docs/why.md. `lines` are the evidence.
    """

    kind: str
    reason: str
    headline: str
    advice: str | None
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    t: float
    node: int | None
    role: str | None
    rank: int | None


@dataclass(frozen=True)
class Outcome(CallResult):
    """How a run ended, or its `state` so far. A run that succeeded, or that a user stopped, has no `cause`.

    `checkpoint` is the tag of the newest one from which it can be resumed. The document is that of `why --json`, with
    everything else that happened; `report` is what it was made of.
    """

    job: str
    run: int
    name: str | None
    state: str
    cause: Cause | None
    seconds: float | None
    pass_: int | None
    step: int | None
    checkpoint: str | None
    warnings: tuple[str, ...]
    report: WhyReport = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.state == "succeeded"


def explain(cluster: Cluster, named: Reference, scheduled: JobWatch | None = None) -> Outcome:
    """Explain a run; the end that its scheduler put to it is its first cause, if it did."""
    report = why(cluster, named.job, run=named.run)
    job = scheduled.now() if scheduled is not None else None
    if job is not None and was_ended(job):
        report = ended_by(report, kind=job.kind, message=f"{job.name}: {job.text}", advice=job.hint or "", t=job.ended)
    known = report.explanation
    return Outcome(
        report.job,
        int(report.members.run or 0),
        report.members.name,
        report.state,
        _cause(report),
        report.seconds,
        known.pass_,
        known.step,
        known.checkpoint["tag"] if known.checkpoint else None,
        tuple(warning["message"] for warning in report.warnings),
        report,
        document=document_of(report, scheduled),
        problem=unheard(report.errors, len(cluster.nodes)),
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


def failure(outcome: Outcome) -> ClusterctlError | None:
    """Return the error for a run that has ended without success, or about which nothing is known."""
    if outcome.ok:
        return None
    if outcome.state == UNKNOWN and outcome.report.errors:
        return unheard(outcome.report.errors, len(outcome.report.members.nodes))
    words = {"stopped": "was stopped", "lost": "was lost"}.get(outcome.state, outcome.state)
    cause = outcome.cause
    message = f"{outcome.job} run {outcome.run} {words}" + (f": {cause.headline}" if cause else "")
    lines = [f"  | {line}" for line in cause.lines] if cause else []
    details = {"job": outcome.job, "run": outcome.run, "state": outcome.state, "reason": cause and cause.reason}
    hint = cause.advice if cause and cause.advice else f"clusterctl why {outcome.job}"
    return JobFailedError("\n".join([message, *lines]), hint=hint, details=details)


def document_of(report: WhyReport, scheduled: JobWatch | None = None) -> WhyDocument:
    """Return the document of `why --json`, of a job of a scheduler if it is `scheduled`."""
    known, by_id, last = report.explanation, report.members.by_id, report.explanation.checkpoint

    def incident(one: Incident) -> IncidentDocument:
        return _incident(one, by_id[one.node].where if one.node in by_id else None)

    return {
        "job": report.job,
        "run": report.members.run,
        **run_label(report.members.name),
        "state": report.state,
        **report.members.to_json(),
        "cause": incident(known.cause) if known.cause else None,
        "advice": advice(report),
        "notes": list(known.notes),
        "then": [incident(one) for one in known.then],
        "alike": [incident(one) for one in known.alike],
        "before": [incident(one) for one in known.before],
        "open": [incident(one) for one in known.open],
        "warnings": list(report.warnings),
        "stopped": known.stopped,
        "not_heard_of": None if known.not_heard_of is None else list(known.not_heard_of),
        "pass": known.pass_,
        "step": known.step,
        "seconds": report.seconds,
        "checkpoint": {"tag": last.get("tag"), "step": last.get("step")} if last else None,
        "clocks": [
            {"node": node.node, "offset_s": node.offset_s, "margin_s": node.margin_s} for node in report.reports
        ],
        "unknown": [{"node": error.node, "message": error.message} for error in report.errors],
        **scheduled_part(scheduled),
    }


def _incident(one: Incident, host: str | None) -> IncidentDocument:
    diagnosis = one.diagnosis
    return {
        "kind": one.kind,
        "reason": diagnosis.kind,
        "t": one.onset,
        "noted": one.t,
        "node": one.node,
        "host": host,
        "role": one.role,
        "rank": one.rank,
        "attempt": one.attempt if one.role else None,
        "message": one.message,
        "words": diagnosis.words,
        "error": diagnosis.error,
        "where": diagnosis.where,
        "exit_code": one.exit_code,
        "signal": diagnosis.signal,
        "errno": diagnosis.errno,
        "subject": diagnosis.subject,
        "times": one.times,
        "lines": [{"t": t, "line": line} for t, line in one.lines],
    }
