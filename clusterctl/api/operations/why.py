"""The first cause of a run's end, from the events of all nodes and from a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.api.operations.scheduled import was_ended

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.record.references import Reference
    from clusterctl.observe.why.report import Why
    from clusterctl.schedulers import JobWatch


def explain(cluster: Cluster, named: Reference, scheduled: JobWatch | None = None) -> Why:
    """Explain a run; the end that its scheduler put to it is its first cause, if it did."""
    from clusterctl.observe.why.report import why

    report = why(cluster, named.job, run=named.run)
    job = scheduled.now() if scheduled is not None else None
    if job is None or not was_ended(job):
        return report
    from clusterctl.observe.why.scheduler import ended_by

    return ended_by(report, kind=job.kind, message=f"{job.name}: {job.text}", advice=job.hint or "", t=job.ended)


def problem(report: Why, of: int) -> ClusterctlError | None:
    """Return the error to report if some of the `of` nodes did not answer."""
    from clusterctl.observe.record.status import unheard

    return unheard(report.errors, of)
