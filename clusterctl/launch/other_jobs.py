"""Other jobs on the nodes of one that is to start: a warning, or with EXCLUSIVE a refusal."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TypedDict

from clusterctl.check.findings import WARNS, Finding, folded, on
from clusterctl.errors import RefusedError

HINT = "they share cores and memory; EXCLUSIVE = True in conf.py refuses to start beside them"


class OtherJob(TypedDict, total=False):
    """A job of the same account on a node, or (`port`, `uid`) one of another account."""

    job: str
    by: str | None
    since: float | None
    port: int
    uid: int


class NodeWithJobs(TypedDict, total=False):
    """The part of a node's answer with the jobs that run there."""

    other_jobs: list[OtherJob]


def check_other_jobs(nodes: Mapping[int, NodeWithJobs], *, exclusive: bool) -> list[Finding]:
    """Return a warning for each job that runs on any node. Raises RefusedError if the new one is `exclusive`."""
    began: dict[str, float] = {}
    for job in (job for facts in nodes.values() for job in facts.get("other_jobs", ())):
        if "port" not in job and job["since"] is not None:
            began[job["job"]] = min(job["since"], began.get(job["job"], job["since"]))
    found = folded(
        Finding("other_job", WARNS, (node,), _describe(job, began), HINT)
        for node, facts in nodes.items()
        for job in facts.get("other_jobs", ())
    )
    if found and exclusive:
        lines = [f"  {on(one.nodes)} {one.message}" for one in found]
        message = "\n".join(["nothing was started: EXCLUSIVE = True, and other jobs are running", *lines])
        raise RefusedError(message, hint="stop them, wait for their end, or set EXCLUSIVE = False")
    return found


def _describe(job: OtherJob, began: Mapping[str, float]) -> str:
    if "port" in job:
        return f"a job of another account (uid {job['uid']}) is running, on port {job['port']}"
    by = f", started by {job['by']}" if job["by"] else ", started"
    since = began.get(job["job"])
    at = datetime.datetime.fromtimestamp(since).strftime(" at %Y-%m-%d %H:%M") if since is not None else ""
    return f"{job['job']} is running{f'{by}{at}' if job['by'] or at else ''}"
