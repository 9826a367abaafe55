"""Sends a job's logs and outputs home: a line per file, its bytes, and then its hash."""

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
# Rotated meanwhile, and there by another name; or a link, a socket, a device without a driver.
NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def collect(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """`{"file": path, "bytes": n}`, n bytes, `{"sha256": ...}` for each file of log/ and output/, no links."""
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
        for place, directories, names in os.walk(job_dir / top):  # follows no links; a million files are not held
            directories.sort()
            for name in sorted(names):
                if not name.startswith("."):
                    yield Path(place, name)


def _send_file(peer: Peer, path: Path, name: str) -> bool:
    """Whether it is a regular file now: nothing else is opened for long, and no link followed."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        left = status.st_size  # what is appended while it is read stays for the next time
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
