"""The state of a job on this node, and the list of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.agent.node.job_choice import choose_job
from clusterctl.agent.node.jobs import describe, list_jobs
from clusterctl.agent.peer import Peer
from clusterctl.common.requests import JobsRequest, StatusRequest


def status(root: Path, request: StatusRequest, peer: Peer) -> dict[str, Any]:
    """Describe a run of the job that is meant; `ran` has the jobs that it was chosen from."""
    job, ran = choose_job(root, request["ref"])
    over, gpus = request.get("over", False), request.get("gpus", False)
    return {**describe(job, request.get("run"), over=over, gpus=gpus), "ran": ran}


def jobs(root: Path, request: JobsRequest, peer: Peer) -> dict[str, Any]:
    return {"jobs": list_jobs(root, over=request.get("over", False))}
