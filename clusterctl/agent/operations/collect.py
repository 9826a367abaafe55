"""Send a job's logs and outputs to the control machine: for each file a line, its bytes, and its hash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from clusterctl.agent.node.jobs import find_job
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError

CHUNK_BYTES = 1 << 20
# Rotated in the meantime, and found again by its new name; or a link, a socket, a device without a driver.
NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def collect(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Send `{"file": path, "bytes": n}`, n bytes and `{"sha256": ...}` for each file of log/ and output/, not links."""
    job = find_job(root, request["ref"])
    count = 0
    for path in _files(job.dir):
        try:
            count += _send_file(peer, path, path.relative_to(job.dir).as_posix())
        except OSError as exc:
            if exc.errno not in NOT_THERE:
                raise
    return {"job": job.dir.name, "dir": str(job.dir), "run": job.newest_run(), "files": count}


def _files(job_dir: Path) -> Iterator[Path]:
    for top in ("log", "output"):
        for directory, directories, names in os.walk(job_dir / top):  # does not follow links, nor list all files first
            directories.sort()
            for name in sorted(names):
                if not name.startswith("."):
                    yield Path(directory, name)


def _send_file(peer: Peer, path: Path, name: str) -> bool:
    """Send a file. Return False if it is not a regular file; never follow a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        left = status.st_size  # bytes appended during the read are left for the next collect
        peer.send({"file": name, "bytes": left})
        peer.send({"sha256": _send_bytes(peer, f, name, left)})
    return True


def _send_bytes(peer: Peer, f: BinaryIO, name: str, left: int) -> str:
    digest = hashlib.sha256()
    while left:
        data = f.read(min(left, CHUNK_BYTES))
        if not data:
            raise AgentError(f"{name} became shorter while it was read")
        peer.send_bytes(data)
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()
