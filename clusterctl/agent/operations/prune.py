"""List and remove old jobs and unused content of this node.

A job is removed by one rename into incoming/, which every dispatch empties: a kill leaves a whole job or none. Content
is removed only if no remaining job needs it and no process of this account mentions it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from clusterctl.agent.node.jobs import is_free
from clusterctl.agent.node.locks import DispatchLock, EnvironmentsLock
from clusterctl.agent.node.runs import list_jobs
from clusterctl.agent.peer import Peer
from clusterctl.common.files import delete, read_json
from clusterctl.common.paths import META, PACKAGE_ROOT, JobPaths, find_jobs, incoming_dir, is_job_id, views_dir
from clusterctl.common.procfs import find_by_environment, run_environment
from clusterctl.common.requests import PruneRequest
from clusterctl.common.requirements import RUNTIME, RUNTIME_BEFORE, of_directory

LIVE = ("starting", "running")
OURS = ("for", "lock")  # beside the environments in venvs/
BLOCK_BYTES = 512  # the unit of st_blocks


def prune(root: Path, request: PruneRequest, peer: Peer) -> dict[str, Any]:
    """List all jobs and content; or, with `remove`, remove those `jobs` and that `content` unless they are in use."""
    if "remove" not in request:
        return {"jobs": [_describe_job(job) for job in _jobs(root)], "content": list(find_content(root))}
    wanted = request["remove"]
    with DispatchLock(root, {"by": "prune"}):
        kept = [*_remove_jobs(root, wanted["jobs"]), *_remove_content(root, wanted["content"])]
        _remove_views(root)
    return {"kept": kept}


def _jobs(root: Path) -> Iterator[tuple[JobPaths, list[dict[str, Any]]]]:
    """Yield the jobs that may be removed, with their runs: none that was deployed by hand."""
    for job in list_jobs(root):
        if is_job_id(job["job"]):
            yield JobPaths(Path(job["dir"])), job["runs"]


def _describe_job(job_and_runs: tuple[JobPaths, list[dict[str, Any]]]) -> dict[str, Any]:
    job, runs = job_and_runs
    outputs = [job.output, *(job.run(run["run"]).dir / "output" for run in runs)]
    return {
        "job": job.dir.name,
        "state": runs[-1]["state"] if runs else "dispatched",
        "runs": len(runs),
        "live": not is_free(job) or any(run["state"] in LIVE for run in runs),
        "bytes": disk_bytes(job.dir),
        "output_bytes": sum(disk_bytes(path) for path in outputs),
        "age_s": max(0.0, time.time() - _last_used(job)),
    }


def _last_used(job: JobPaths) -> float:
    """Return the time at which the job was dispatched, or its newest run last wrote its state."""
    newest = job.newest_run()
    files = [job.record, *((job.run(newest).spec, job.run(newest).state) if newest else ())]
    return max((_changed(file) for file in files), default=0.0)


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def disk_bytes(path: Path, *, shared: bool = True) -> int:
    """Return the bytes that a tree's files take on the disk. Unreadable directories count as 0.

    Unless `shared`, files with several links do not count: environments have those of uv's cache.
    """
    total, todo = 0, [str(path)]
    while todo:
        item = todo.pop()
        with contextlib.suppress(OSError):
            status = os.lstat(item)
            if stat.S_ISDIR(status.st_mode):
                todo += [entry.path for entry in os.scandir(item)]
            elif shared or status.st_nlink == 1:
                total += status.st_blocks * BLOCK_BYTES
    return total


def find_content(root: Path) -> Iterator[dict[str, Any]]:
    """Yield agents, environments, wheels, uv and leftovers, with the jobs or environments that need them."""
    mentioned = _mentioned()
    own = Path(PACKAGE_ROOT).name  # lib/DIGEST, if this is the node's agent
    environments = [path for path in _inside(_directory(root, "environment")) if path.name not in OURS]
    needs = {path: _jobs_that_need(root, path.name) for path in environments}
    for kind in ("agent", "environment", "wheel", "uv", "leftover"):
        for path in environments if kind == "environment" else _inside(_directory(root, kind)):
            name = path.name
            users = [user.name for user in environments if kind == "wheel" and _holds(user / "clusterctl.json", name)]
            yield {
                "kind": kind,
                "name": name,
                "live": name == own or any(_mark(kind, name) in text for text in mentioned),
                "needed_by": needs.get(path, users),
                "bytes": disk_bytes(path, shared=kind != "uv"),
                "age_s": max(0.0, time.time() - _changed(path)),
            }


def _mark(kind: str, name: str) -> bytes:
    """Return what processes that use this content mention."""
    return os.fsencode(f"/{META}/uv/{name}" if kind == "uv" else name)


def _directory(root: Path, kind: str) -> Path:
    names = {"agent": "lib", "environment": "venvs", "wheel": "wheels", "uv": "uv"}
    return incoming_dir(root) if kind == "leftover" else root / META / names[kind]


def _inside(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _holds(path: Path, word: str) -> bool:
    try:
        return word.encode() in path.read_bytes()
    except OSError:
        return False


def _mentioned() -> list[bytes]:
    """Return the command lines and environments of all processes of this account."""
    texts = []
    for entry in os.scandir("/proc"):
        for name in ("cmdline", "environ") if entry.name.isdigit() else ():
            with contextlib.suppress(OSError):
                texts.append(Path(entry.path, name).read_bytes())
    return texts


def _jobs_that_need(root: Path, environment: str) -> list[str]:
    """Return the jobs that name an environment, and those whose requirements it was made for, with any interpreter."""
    pointers = [read_json(path) or {} for path in _inside(_directory(root, "environment") / "for")]
    lists = [pointer.get("requirements") for pointer in pointers if pointer.get("environment") == environment]
    return [job.dir.name for job in find_jobs(root) if _names(job, environment) or _asks_for(job, lists)]


def _names(job: JobPaths, environment: str) -> bool:
    return any(_holds(path, environment) for path in (job.record, *job.runs.glob("*/spec.json")))


def _asks_for(job: JobPaths, lists: Sequence[Any]) -> bool:
    try:
        asked = product((True, False), (RUNTIME, RUNTIME_BEFORE))
        return any(of_directory(job.dir, runtime, added) in lists for runtime, added in asked)
    except (OSError, UnicodeDecodeError):
        return True


def _remove_jobs(root: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Remove the jobs with these ids. Yield those that are kept, and why."""
    for job in find_jobs(root):
        if job.dir.name in names and is_job_id(job.dir.name):
            why = _remove_job(root, job)
            if why:
                yield {"kind": "job", "name": job.dir.name, "why": why}


def _remove_job(root: Path, job: JobPaths) -> str | None:
    fd = os.open(job.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return "it is running"
    try:
        if find_by_environment(run_environment(job.dir)):
            return f"it has leftover processes; to end them: clusterctl stop {job.dir.name}"
        gone = incoming_dir(root) / f"removed-{job.dir.name}"
        delete(gone)  # an earlier job of this name
        job.dir.rename(gone)
        return _why_not(gone)
    finally:
        os.close(fd)


def _remove_views(root: Path) -> None:
    """Remove the working directories of trainers whose job no longer exists."""
    with contextlib.suppress(FileNotFoundError):
        for views in views_dir(root).iterdir():
            if not (root / views.name).exists():
                _why_not(views)


def _remove_content(root: Path, wanted: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Remove content that nothing needs now; environments before the wheels they were made from."""
    for kind in ("leftover", "agent", "environment", "wheel", "uv"):
        if not any(item[0] == kind for item in wanted):
            continue
        with EnvironmentsLock(root, "prune", 0) as holder:
            for item in find_content(root):
                if item["kind"] != kind or (kind, item["name"]) not in wanted:
                    continue
                why = "it is in use" if item["live"] or item["needed_by"] else None
                if holder and kind in ("environment", "wheel", "uv"):
                    why = f"a {holder.operation} is running on this node"  # no pid: the same text on all nodes
                why = why or _why_not(_directory(root, kind) / item["name"])
                if why:
                    yield {"kind": kind, "name": item["name"], "why": why}


def _why_not(path: Path) -> str | None:
    """Delete a path. Return None, or the system's error."""
    try:
        delete(path)
    except OSError as exc:
        return f"{exc.strerror}: {exc.filename}"
    return None
