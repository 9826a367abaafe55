"""The state of a job on this node, and the list of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.agent.gpus.of_run import add_gpus
from clusterctl.agent.node.job_choice import choose_job
from clusterctl.agent.node.jobs import LIVE
from clusterctl.agent.node.runs import describe, list_jobs, read_summary
from clusterctl.agent.peer import Peer
from clusterctl.common.requests import JobsRequest, StatusRequest


def status(root: Path, request: StatusRequest, peer: Peer) -> dict[str, Any]:
    """Describe a run of the job that is meant, and the use of its GPUs; `ran` has the jobs that it was chosen from."""
    job, ran = choose_job(root, request["ref"])
    over = request.get("over", False)
    answer = describe(job, request.get("run"), over=over)
    if request.get("gpus") and answer["run"] is not None:
        run = job.run(answer["run"])
        spec = read_summary(run)
        if spec is not None and spec.gpus is not None:
            add_gpus(run, spec, answer, live=answer["state"] in LIVE and not over)
    return {**answer, "ran": ran}


def jobs(root: Path, request: JobsRequest, peer: Peer) -> dict[str, Any]:
    return {"jobs": list_jobs(root, over=request.get("over", False))}
