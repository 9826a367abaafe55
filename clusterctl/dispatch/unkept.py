"""The properties of files that a dispatch does not keep: special mode bits, hard links, holes."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from clusterctl.common.errors import first_of
from clusterctl.common.tree import shortened

SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
HOLE_BYTES = 1_000_000  # less is not worth a warning
BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own are
MOST_NAMED = 3


class UnpreservedProperties:
    """Collects the files of a workspace that have such properties."""

    def __init__(self) -> None:
        self._special: list[str] = []
        self._sparse: list[str] = []
        self._linked: list[str] = []
        self._inodes: set[tuple[int, int]] = set()

    def add(self, path: str, place: str, status: os.stat_result) -> None:
        """Look at the file `path` of the workspace, which is at `place` here."""
        if status.st_mode & SPECIAL_BITS:
            self._special.append(path)
        if status.st_nlink > 1:  # the other name may be outside, and then nothing is lost
            inode = (status.st_dev, status.st_ino)
            if inode in self._inodes:
                self._linked.append(path)
            self._inodes.add(inode)
        if status.st_size - status.st_blocks * BLOCK_BYTES > HOLE_BYTES and _has_hole(place, status.st_size):
            self._sparse.append(path)

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each property that is lost, with some of the files that have it."""
        found = (
            ("setuid, setgid and sticky bits are not kept", self._special),
            ("hard links arrive as separate files", self._linked),
            ("sparse files arrive without holes", self._sparse),
        )
        return tuple(f"warning: {what}: {_named(paths)}" for what, paths in found if paths)


def _named(paths: Sequence[str]) -> str:
    return first_of([*map(shortened, paths)], MOST_NAMED)


def _has_hole(place: str, size: int) -> bool:
    """Return True if a file has a hole. It may also have few blocks because its file system compresses it."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # reported when it is hashed
        return False
    try:
        return os.lseek(fd, 0, os.SEEK_HOLE) < size
    except OSError:
        return False
    finally:
        os.close(fd)
