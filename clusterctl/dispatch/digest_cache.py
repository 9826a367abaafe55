"""Cache of file digests: one cache file per workspace. A missing or damaged cache is never an error.

A digest is keyed by path, size, mtime, ctime and inode. A file that changed less than SETTLED_NS before it was hashed
could change again without a new timestamp, so its digest is not cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from pathlib import Path

from clusterctl.common.files import write_atomic

MAGIC = b"clusterctl hashes 1\n"
STAMP = struct.Struct("<qqqQ")  # size, mtime_ns, ctime_ns, inode
DIGEST_BYTES = 32
ROW_BYTES = STAMP.size + DIGEST_BYTES
COUNT = struct.Struct("<Q")
SETTLED_NS = 2 * 10**9

Rows = dict[str, bytes]  # path relative to the workspace -> stamp and digest


def stamp(status: os.stat_result) -> bytes:
    return STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def is_settled(status: os.stat_result, hashed_ns: int) -> bool:
    """Return True if any change after `hashed_ns` would show in the file's timestamps."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED_NS <= hashed_ns


def cache_path(directory: Path, workspace: Path) -> Path:
    """Return the path of a workspace's digest cache below the cache `directory`."""
    name = hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:32]
    return directory / "hashes" / name


def load(path: Path) -> Rows:
    """Return the rows that `save` wrote; empty if the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    head = len(MAGIC) + DIGEST_BYTES
    body = memoryview(data)[head:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != data[len(MAGIC) : head]:
        return {}
    (count,) = COUNT.unpack_from(body)
    end = COUNT.size + count * ROW_BYTES
    rows = [bytes(body[at : at + ROW_BYTES]) for at in range(COUNT.size, end, ROW_BYTES)]
    paths = bytes(body[end:]).decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(paths, rows, strict=False))


def save(path: Path, rows: Rows) -> None:
    """Replace the whole cache. If the path cannot be written, do without a cache."""
    paths = "\0".join(rows).encode("utf-8", "surrogateescape")
    body = b"".join((COUNT.pack(len(rows)), *rows.values(), paths))
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, MAGIC + hashlib.sha256(body).digest() + body, durable=False)
