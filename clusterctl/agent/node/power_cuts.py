"""Finds files that a power cut has damaged, when a job is first used after a reboot."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from clusterctl.agent.node.content import Row, is_verified, mark_verified, read_manifest, stamp_of
from clusterctl.common.files import digest_of
from clusterctl.common.paths import META, JobPaths


def find_damage(job: JobPaths, heartbeat: Callable[[], None]) -> list[str]:
    """Return the paths of a job whose bytes are not those that were dispatched, though nobody has changed them.

    `heartbeat` is called periodically.
    """
    if is_verified(job.meta):
        return []
    rows = read_manifest(job.dir)
    if rows is None:
        return [f"{META}/manifest"]
    damaged = [row.entry.path for row in rows if _is_damaged(job.dir / row.entry.path, row, heartbeat)]
    if not damaged:
        mark_verified(job.meta)
    return damaged


def _is_damaged(path: Path, row: Row, heartbeat: Callable[[], None]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if row.stamp != stamp_of(status):  # somebody changed it
        return False
    return status.st_size != row.entry.size or digest_of(path, heartbeat) != row.entry.digest
