"""The state of a job on this node, and the list of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.agent.gpus.usage import add_gpus
from clusterctl.agent.node.jobs import LIVE, choose_job
from clusterctl.agent.node.runs import describe_dispatched, describe_run, find_run, list_jobs
from clusterctl.agent.peer import Peer
from clusterctl.common.requests import JobsRequest, StatusRequest


def status(root: Path, request: StatusRequest, peer: Peer) -> dict[str, Any]:
    """Describe a run of the job that is meant, and the use of its GPUs; `ran` has the jobs that it was chosen from."""
    job, ran = choose_job(root, request["ref"])
    over = request.get("over", False)
    found = find_run(job, request.get("run"))
    if found is None:
        return {**describe_dispatched(job), "ran": ran}
    run, spec = found
    answer = describe_run(run, spec, over=over)
    if request.get("gpus") and spec.gpus is not None:
        add_gpus(run, spec, answer, live=answer["state"] in LIVE and not over)
    return {**answer, "ran": ran}


def jobs(root: Path, request: JobsRequest, peer: Peer) -> dict[str, Any]:
    return {"jobs": list_jobs(root, over=request.get("over", False))}
