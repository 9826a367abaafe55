"""Send a job's logs and outputs to the control machine: for each file a line, its bytes, and its hash.

Empty directories are sent as `{"dir": path}`. The answer lists what is `left` here as [path, kind]: a "link" or a
"special" file could lead anywhere, and a "name" could harm a terminal.
"""

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
from clusterctl.common.tree import ODD_CHARACTERS

#: The beginnings of names under which we write files before they are whole.
HALF_WRITTEN = (".pserver-", ".manifest.json", ".model.safetensors")
MOST_LEFT = 100  # that are listed
CHUNK_BYTES = 1 << 20
# Rotated in the meantime, and found again by its new name; or a link, a socket, a device without a driver.
NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def collect(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Send `{"file": path, "bytes": n, "mode", "mtime_ns"}`, n bytes and `{"sha256": ...}` for each file."""
    job = find_job(root, request["ref"])
    count = 0
    left: list[tuple[str, str]] = []
    for path in _paths(job.dir):
        name = path.relative_to(job.dir).as_posix()
        kind = _kind(path)
        if ODD_CHARACTERS.search(name):
            left.append((name, "name"))
        elif kind == stat.S_IFDIR:
            peer.send({"dir": name})
        elif kind == stat.S_IFREG:
            count += _send_file(peer, path, name)
        elif kind:
            left.append((name, "link" if kind == stat.S_IFLNK else "special"))
    about = {"job": job.dir.name, "dir": str(job.dir), "run": job.newest_run(), "files": count}
    return {**about, "left": left[:MOST_LEFT], "more": max(0, len(left) - MOST_LEFT)}


def _kind(path: Path) -> int:
    """Return the type of a file, as in its mode; 0 if it is gone."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return 0


def _paths(job_dir: Path) -> Iterator[Path]:
    """Yield all files, links and empty directories."""
    for top in ("log", "output"):
        for directory, directories, names in os.walk(job_dir / top):  # does not follow links, nor list all files first
            directories.sort()
            links = [name for name in directories if Path(directory, name).is_symlink()]
            kept = [name for name in names if not _is_ours(top, name)]
            if not names and not directories and directory != str(job_dir / top):
                yield Path(directory)
            for name in sorted((*kept, *links)):
                yield Path(directory, name)


def _is_ours(top: str, name: str) -> bool:
    """Return True for the indexes of logs, and for files that are not whole yet."""
    return name.startswith("." if top == "log" else HALF_WRITTEN)


def _send_file(peer: Peer, path: Path, name: str) -> bool:
    """Send a file. Return False if it is gone, or not a regular file any more; never follow a link."""
    try:
        return _send_opened(peer, path, name)
    except OSError as exc:
        if exc.errno not in NOT_THERE:
            raise
        return False


def _send_opened(peer: Peer, path: Path, name: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        left = status.st_size  # bytes appended during the read are left for the next collect
        about = {"mode": stat.S_IMODE(status.st_mode), "mtime_ns": status.st_mtime_ns}
        peer.send({"file": name, "bytes": left, **about})
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
