"""The first cause of a run's end, from the events of all nodes and from a scheduler."""

from __future__ import annotations

from clusterctl.api.operations.scheduled import was_ended
from clusterctl.cluster import Cluster
from clusterctl.errors import ClusterctlError
from clusterctl.observe.record.references import Reference
from clusterctl.observe.record.status import unheard
from clusterctl.observe.why.report import WhyReport, why
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
