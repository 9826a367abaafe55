"""Record a directory that was deployed by hand as a job, where it is: nothing in it is moved or changed."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.dispatch.in_place import seal
from clusterctl.agent.node.content import MANY, Row, lists_of, stamp_of
from clusterctl.agent.node.locks import JobLock
from clusterctl.agent.peer import Peer
from clusterctl.common import seal as seals
from clusterctl.common.errors import AgentError
from clusterctl.common.files import digest_of, read_json
from clusterctl.common.paths import RESERVED, JobPaths
from clusterctl.common.requests import AdoptRequest
from clusterctl.common.safe_json import dumps
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry, content_of, order


def adopt(root: Path, request: AdoptRequest, peer: Peer) -> dict[str, Any]:
    """Record the directory `job` below `root`. First send `{"rows": [[path, contents], ...]}`, in parts.

    A directory that was adopted before is recorded again, with the files that it has now. `unrecorded` is the number
    of sockets, pipes and devices in it.
    """
    job = JobPaths(root / request["job"])
    _check_directory(job, request["node"])
    is_new = not job.meta.exists()
    job.meta.mkdir(0o700, exist_ok=True)
    try:
        with JobLock(job):
            rows, unrecorded = _scan(job.dir, peer.heartbeat)
            entries = [row.entry for row in rows]
            record = _record(job, request, entries)
            seal(job, record, lists_of(rows, dumps(entries)))
    except BaseException:
        if is_new and not job.record.exists():
            shutil.rmtree(job.meta, ignore_errors=True)
        raise
    named = [[row.entry.path, _contents(row.entry)] for row in rows if row.entry.kind != DIRECTORY]
    for first in range(0, len(named), MANY):
        peer.send({"rows": named[first : first + MANY]})
    return {"dir": str(job.dir), "files": record["files"], "bytes": record["bytes"], "unrecorded": unrecorded}


def _check_directory(job: JobPaths, node: int) -> None:
    """Raise AgentError unless it is a directory of this account, without files at the places of ours."""
    name = job.dir.name
    if not job.dir.exists():
        hint = f"copy it to {job.dir} on every node, or send a workspace with clusterctl dispatch"
        raise AgentError(f"there is no directory {name} in ROOT_DIR", kind="no_job", hint=hint)
    for directory in (job.dir, job.meta):
        if os.path.lexists(directory) and not seals.is_own(str(directory)):
            message = f"{directory} is a link, belongs to another account, or others can write to it"
            raise AgentError(message, kind="refused", hint="make it a directory of your own, and chmod go-w it")
    for path in (job.lock, job.record, job.runs, *(job.meta / name for name in ("manifest", "seal"))):
        if path.is_symlink():
            raise AgentError(f"{path} is a link", kind="refused", hint=f"remove it, or all of {job.meta}")
    record = read_json(job.record)
    if record is not None:
        if not isinstance(record, dict) or record.get("job") != name:
            hint = f"remove its records of that job: {job.meta}"
            raise AgentError(f"{job.dir} is a copy of another job", kind="refused", hint=hint)
        return
    taken = [path.name for path in (job.log, job.output) if not _is_free(path)]
    taken += [job.nodefile.name] if not _is_nodefile(job.nodefile, node) else []
    if taken:
        hint = "rename what is there: runs write to these places"
        raise AgentError(f"{job.dir} already has {', '.join(taken)}", kind="refused", hint=hint)


def _is_free(path: Path) -> bool:
    """Return True if there is nothing, or an empty directory."""
    return not os.path.lexists(path) or (seals.is_own(str(path)) and not any(path.iterdir()))


def _is_nodefile(path: Path, node: int) -> bool:
    """Return True if there is nothing, or a file with the number of this node."""
    return not os.path.lexists(path) or (path.is_file() and path.read_bytes().strip() == b"%d" % node)


def _scan(directory: Path, heartbeat: Callable[[], None]) -> tuple[list[Row], int]:
    """Return the rows of all paths, a directory before its contents, and the number of those that have none."""
    rows: list[Row] = []
    others = 0
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(directory / below) as items:
            for item in items:
                path = f"{below}/{item.name}" if below else item.name
                if path in RESERVED:
                    continue
                row = _row(path, Path(item.path), heartbeat)
                others += row is None
                if row is not None:
                    rows.append(row)
                    if row.entry.kind == DIRECTORY:
                        todo.append(path)
    return sorted(rows, key=lambda row: order(row.entry.path)), others


def _row(path: str, where: Path, heartbeat: Callable[[], None]) -> Row | None:
    """Return the row of one path, with the digest of a file; None for a socket, pipe or device."""
    status = where.lstat()
    mode, time_ns = stat.S_IMODE(status.st_mode) & 0o777, status.st_mtime_ns
    if stat.S_ISDIR(status.st_mode):
        return Row(Entry(path, DIRECTORY, mode, time_ns), None)
    if stat.S_ISLNK(status.st_mode):
        return Row(Entry(path, LINK, mode, time_ns, target=str(where.readlink())), None)
    if not stat.S_ISREG(status.st_mode):
        return None
    digest, stamp = digest_of(where, heartbeat), stamp_of(status)
    if stamp_of(where.lstat()) != stamp:
        raise AgentError(f"{where} changed while it was being read", hint="start again when nothing writes to it")
    return Row(Entry(path, FILE, mode, time_ns, status.st_size, digest), stamp)


def _contents(entry: Entry) -> str:
    return entry.digest if entry.kind == FILE else f"-> {entry.target}"


def _record(job: JobPaths, request: AdoptRequest, entries: list[Entry]) -> dict[str, Any]:
    files = [entry for entry in entries if entry.kind == FILE]
    return {
        "v": 1,
        "job": job.dir.name,
        "node": request["node"],
        "nodes": request["nodes"],
        "workspace": str(job.dir),
        "source": "adopted",
        "content": content_of(entry._replace(mode=0, mtime_ns=0) for entry in entries),
        "tree": content_of(entries),
        "files": len(files),
        "bytes": sum(entry.size for entry in files),
        "t": time.time(),
        "adopted": True,
    }
