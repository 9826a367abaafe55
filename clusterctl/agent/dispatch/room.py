"""The disk space that a dispatch takes on this node, and the space that is free."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.agent.node.content import BLOCK, LocalCopy, Sums
from clusterctl.common.procfs import PROC, boot_id
from clusterctl.common.tree import Entry

#: File systems on which a copy always takes as much space as its original. On others, both may share it.
COPIES_IN_FULL = frozenset(("ext2", "ext3", "ext4", "tmpfs"))


class RequiredSpace:
    """The bytes that a tree takes on this disk. `torn`: by digest, the bytes of a file that are already here."""

    def __init__(self, root: Path, entries: list[Entry], sources: dict[str, LocalCopy], torn: dict[str, int]) -> None:
        self._root = root
        self._device = root.stat().st_dev
        self._entries = entries
        self._sources = sources
        self._torn = torn
        self._copies_take = _type_of(self._device) in COPIES_IN_FULL

    def about(self, files: list[int], same: Sums, changed: list[int] | None) -> dict[str, Any]:
        """Return the space for a `new` job directory, and for one that is `changed` in place.

        `files` and `changed` are numbers of rows; `same` counts the other rows, of which the newest job has the bytes.
        `free` is None if the file system does not report it. Nodes whose `disk` is the same share the free bytes.
        """
        copied = same.blocks if self._copies_take else 0
        return {
            "path": str(self._root),
            "disk": f"{boot_id()} {self._device}",
            "free": free(self._root),
            "new": self._of(files) + BLOCK * (copied + same.directories),
            "in_place": None if changed is None else self._of(changed),
        }

    def _of(self, numbers: Iterable[int]) -> int:
        total = 0
        seen = set()
        for number in numbers:
            entry = self._entries[number]
            size = -(-entry.size // BLOCK) * BLOCK
            source = self._sources.get(entry.digest)
            if entry.digest in seen or (source and not source.movable):
                total += size if self._copies_take else 0
            elif source is None:
                total += max(size - self._torn.get(entry.digest, 0), 0)
            seen.add(entry.digest)
        return total


def free(root: Path) -> int | None:
    """Return the bytes that this account can still write to the file system of `root`; None if it does not say."""
    system = os.statvfs(root)
    blocks = system.f_bavail if os.geteuid() else system.f_bfree
    return blocks * system.f_frsize if system.f_blocks else None


def _type_of(device: int) -> str:
    """Return the type of the file system on a device, such as "ext4"; "" if it is not listed."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = (PROC / "self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    types = (line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == wanted)
    return next(types, "")
