"""Describe what a run ran on this node: the files of its job as they were dispatched, and its packages.

With `list`, the files come first, in messages `{"files": [[path, bytes, contents], ...]}`: the contents of a file are
its sha256, those of a link `-> TARGET`. The answer has a `digest` of the list, so that only one of the nodes with the
same files is asked for it, and the number of files that were `changed` here since the dispatch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.node.content import Row, read_manifest, stamp_of
from clusterctl.agent.node.jobs import find_job, pick_run
from clusterctl.agent.node.runs import need_spec
from clusterctl.agent.packages.venvs import Venvs
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import RunPaths
from clusterctl.common.requests import ContentsRequest
from clusterctl.common.requirements import normal
from clusterctl.common.safe_json import dumps
from clusterctl.common.shards import copied
from clusterctl.common.tree import DIRECTORY, LINK
from clusterctl.common.wheels import Wheel

MOST_FILES = 200_000
BATCH_FILES = 2000  # of a message, and between two signs of life


def contents(root: Path, request: ContentsRequest, peer: Peer) -> dict[str, Any]:
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    rows = read_manifest(job.dir)
    if rows is None:
        raise AgentError(f"the list of files of {job.dir.name} is missing or damaged", hint="dispatch the job again")
    rows = [row for row in rows if row.entry.kind != DIRECTORY and copied(row.entry.path) is None]
    if len(rows) > MOST_FILES:
        raise AgentError(f"{job.dir.name} has more than {MOST_FILES:,} files, which are too many to compare")
    listed, changed = hashlib.sha256(), 0
    for batch in _batches(rows):
        files = [[row.entry.path, row.entry.size, _contents(row)] for row in batch]
        listed.update(dumps(files))
        if request.get("list"):
            peer.send({"files": files})
        else:
            peer.heartbeat()
            changed += sum(_is_changed(job.dir, row) for row in batch)
    return {
        "job": job.dir.name,
        "run": run.run if run else None,
        "digest": listed.hexdigest(),
        "changed": changed,
        "packages": _packages(root, run),
    }


def _batches(rows: list[Row]) -> Iterator[list[Row]]:
    rows = sorted(rows, key=lambda row: row.entry.path)
    return (rows[first : first + BATCH_FILES] for first in range(0, len(rows), BATCH_FILES))


def _contents(row: Row) -> str:
    return f"-> {row.entry.target}" if row.entry.kind == LINK else row.entry.digest


def _is_changed(directory: Path, row: Row) -> bool:
    """Return True if the file is not the one that was dispatched."""
    if row.stamp is None:
        return False
    try:
        return stamp_of(os.lstat(f"{directory}/{row.entry.path}")) != row.stamp
    except OSError:
        return True


def _packages(root: Path, run: RunPaths | None) -> dict[str, str]:
    """Return the versions of the interpreter and of all packages in the run's environment that are still known."""
    if run is None or not run.spec.is_file():
        return {}
    spec = need_spec(run)
    lock = Venvs(root).read_lock(Path(spec.venv).name) if spec.venv else None
    installed = {normal(wheel.name): wheel.version for wheel in (Wheel(*row) for row in lock or ())}
    return {**installed, **(spec.versions or {})}
