"""The state of a job as a document."""

from __future__ import annotations

from typing import Any

from clusterctl.api.operations.references import job_name
from clusterctl.cluster import Cluster
from clusterctl.observe.record.status import JobStatus


def to_json(cluster: Cluster, current: JobStatus) -> dict[str, Any]:
    """The document of `status --json`."""
    dropped = current.cut_dropped
    return {
        "job": current.job,
        "run": current.run,
        **({"name": current.members.name} if current.members.name else {}),
        "state": current.state,
        "job_workspace": job_name(cluster.settings, cluster.inventory, current.job),
        **current.members.to_json(),
        "resumed": (current.lead or {}).get("resumed"),
        **({"cut_dropped": {key: dropped[key] for key in ("t", "message", "trainers")}} if dropped else {}),
        **({"warnings": current.warnings} if current.warnings else {}),
        "processes": [process.to_json() for process in current.processes],
        "nodes": current.nodes,
    }
