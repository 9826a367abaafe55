"""The jobs on the nodes, and those that wait for nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.documents.jobs import JobsDocument
from clusterctl.errors import ClusterctlError
from clusterctl.observe.record.jobs import jobs
from clusterctl.observe.record.model import JobOverview
from clusterctl.observe.record.status import unheard
from clusterctl.schedulers import ScheduledJob, queued


@dataclass(frozen=True)
class JobList:
    """The jobs on the nodes that answered, newest first. `problem` is the error to report if others did not."""

    jobs: Sequence[JobOverview]
    errors: Sequence[ClusterctlError]
    problem: ClusterctlError | None


def known_jobs(cluster: Cluster, state_of: Callable[[str | None], str] | None = None) -> JobList:
    """Ask all nodes for their jobs. `state_of` tells the state of a run where that is not for nodes to say."""
    found, errors = jobs(cluster, state_of)
    return JobList(found, errors, unheard(errors, len(cluster.nodes)))


def waiting_jobs(settings: Settings, environ: Mapping[str, str]) -> list[ScheduledJob]:
    """Return the jobs that were handed to a scheduler and wait for nodes."""
    return queued(settings, environ)


def document(jobs: Sequence[JobOverview], waiting: Sequence[ScheduledJob]) -> JobsDocument:
    """Return the document of `jobs --json`."""
    return JobsDocument(tuple(jobs), tuple(job.to_json() for job in waiting) or None)
