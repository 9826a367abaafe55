"""A checkpoint of the running job, now."""

from __future__ import annotations

from clusterctl.cluster import Cluster, NodeOutcome, raise_failures
from clusterctl.common.answers import SaveAnswer
from clusterctl.common.requests import SaveRequest
from clusterctl.errors import UsageError
from clusterctl.observe.record.status import find

MARGIN_S = 60.0  # for the answer of a node that swaps


def save(cluster: Cluster, ref: str | None, *, timeout_s: float) -> SaveAnswer:
    """Ask the lead for a checkpoint, and return its `job`, `run`, `tag` and `step` once it is complete.

    Raises if that takes longer than `timeout_s`, and RefusedError if the job is not running.
    """
    job, members = find(cluster, ref)
    if members.run is None:
        raise UsageError(f"{job} was never started", hint=f"clusterctl start --job_workspace {job}")
    request: SaveRequest = {"op": "save", "ref": job, "limit_s": timeout_s}
    outcomes: list[NodeOutcome[SaveAnswer]] = cluster.ask(request, members.nodes[:1], answer_s=timeout_s + MARGIN_S)
    (answer,) = raise_failures(outcomes, "save")
    return {"job": answer["job"], "run": answer["run"], "tag": answer["tag"], "step": answer["step"]}
