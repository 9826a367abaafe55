"""The runs of this node that were given a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl.agent.node.jobs import find_job
from clusterctl.agent.node.runs import read_summary
from clusterctl.agent.peer import Peer
from clusterctl.common.answers import NamedAnswer, NamedRun
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import RunPaths, find_jobs
from clusterctl.common.requests import FindNamedRequest


def find_named(root: Path, request: FindNamedRequest, peer: Peer) -> NamedAnswer:
    """Return the `job` that the requested `ref` is an id, a prefix or a directory of, else the `runs` of this name."""
    ref = request["ref"]
    try:
        return {"job": find_job(root, ref).dir.name, "runs": []}
    except AgentError as exc:
        if exc.kind != "no_job":
            raise
    return {"job": None, "runs": list(_runs_named(root, ref))}


def _runs_named(root: Path, name: str) -> Iterator[NamedRun]:
    for job in find_jobs(root):
        for run in map(job.run, job.run_names()):
            spec = read_summary(run) if _may_be_named(run, name) else None
            if spec is not None and spec.name == name:
                yield {"job": job.dir.name, "run": run.run, "t": spec.t}


def _may_be_named(run: RunPaths, name: str) -> bool:
    """Return False for most runs of other names: parsing the spec of a run of 1,000 nodes takes milliseconds."""
    try:
        return name.encode() in run.spec.read_bytes()
    except FileNotFoundError:
        return False
