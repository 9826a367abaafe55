"""Sends a job's logs and outputs home: a line per file, its bytes, and then its hash."""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.jobs import find_job
from clusterctl.agent.protocol import AgentError, Peer

CHUNK_BYTES = 1 << 20


def collect(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """`{"file": path, "bytes": n}`, n bytes, `{"sha256": ...}` for each file of log/ and output/, no links."""
    job = find_job(root, request["ref"])
    count = 0
    for path in _files(job.dir):
        with contextlib.suppress(FileNotFoundError):  # rotated meanwhile: it is there by another name
            _send_file(peer, path, path.relative_to(job.dir).as_posix())
            count += 1
    return {"job": job.dir.name, "dir": str(job.dir), "run": job.newest_run(), "files": count}


def _files(job_dir: Path) -> Iterator[Path]:
    for top in ("log", "output"):
        for path in sorted((job_dir / top).rglob("*")):
            hidden = path.name.startswith(".")
            if not hidden and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _send_file(peer: Peer, path: Path, name: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        size = left = path.stat().st_size  # what is appended while it is read stays for the next time
        peer.send({"file": name, "bytes": size})
        while left:
            data = f.read(min(left, CHUNK_BYTES))
            if not data:
                raise AgentError(f"{name} became shorter while it was read")
            peer.send_bytes(data)
            digest.update(data)
            left -= len(data)
    peer.send({"sha256": digest.hexdigest()})
