"""The first cause of a run's end, from the events of all nodes and from a scheduler."""

from __future__ import annotations

from clusterctl.api.operations.scheduled import scheduled_part, was_ended
from clusterctl.cluster import Cluster
from clusterctl.documents.jobs import IncidentDocument, WhyDocument, run_label
from clusterctl.errors import ClusterctlError
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import unheard
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.report import WhyReport, advice, why
from clusterctl.observe.why.scheduler import ended_by
from clusterctl.schedulers import JobWatch


def explain(cluster: Cluster, named: Reference, scheduled: JobWatch | None = None) -> WhyReport:
    """Explain a run; the end that its scheduler put to it is its first cause, if it did."""
    report = why(cluster, named.job, run=named.run)
    job = scheduled.now() if scheduled is not None else None
    if job is None or not was_ended(job):
        return report

    return ended_by(report, kind=job.kind, message=f"{job.name}: {job.text}", advice=job.hint or "", t=job.ended)


def problem(report: WhyReport, of: int) -> ClusterctlError | None:
    """Return the error to report if some of the `of` nodes did not answer."""
    return unheard(report.errors, of)


def document(report: WhyReport, scheduled: JobWatch | None = None) -> WhyDocument:
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
