"""The jobs that run on this node beside one that is to start, as far as this account can see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from clusterctl.agent.node.job_processes import SUPERVISOR, supervised
from clusterctl.agent.node.ports import holders
from clusterctl.agent.node.runs import read_summary
from clusterctl.common.paths import JobPaths
from clusterctl.common.port_claims import claimed_ports
from clusterctl.common.procfs import PROC, environment_of, variable

MOST_NAMED = 20
HOME = b"HOME"


def other_jobs(own: Path) -> list[dict[str, Any]]:
    """Return the jobs of this account, in any ROOT_DIR: `job`, who started it (`by`) and when (`since`), if known.

    Of other accounts, return the `port` that a job has claimed, and the `uid`. Nodes of a fake cluster, which share a
    machine and an account, each have their own HOME, and do not count as one node.
    """
    home = _home(os.getpid())
    found = {}
    for process, directory, run in supervised(SUPERVISOR):
        if os.path.realpath(directory) != os.path.realpath(own) and _home(process.pid) == home:
            job = JobPaths(Path(directory))
            spec = read_summary(job.run(run)) if job.is_own() else None
            found[job.dir.name] = {
                "job": job.dir.name,
                "by": spec.by if spec else None,
                "since": (spec.t if spec else None) or _started(process.pid),
            }
    return [*found.values(), *_of_others()][:MOST_NAMED]


def _of_others() -> list[dict[str, Any]]:
    """Return one port of each other account whose job listens on a claimed port."""
    by_uid = {holder["uid"]: holder["port"] for holder in holders(claimed_ports(), except_of=os.getuid())}
    return [{"port": port, "uid": uid} for uid, port in sorted(by_uid.items())]


def _home(pid: int) -> bytes | None:
    return variable(environment_of(pid), HOME)


def _started(pid: int) -> float | None:
    try:
        return float((PROC / str(pid)).lstat().st_ctime)
    except OSError:
        return None
