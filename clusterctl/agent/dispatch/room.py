"""The disk space that a dispatch takes on this node, and the space that is free."""

from __future__ import annotations

import os

from clusterctl.common.procfs import PROC, boot_id
from clusterctl.common.tree import DIRECTORY, FILE, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path
    from typing import Any

    from clusterctl.agent.node.content import Source

BLOCK = 4096
#: File systems on which a copy always takes as much space as its original. On others, both may share it.
COPIES_IN_FULL = frozenset(("ext2", "ext3", "ext4", "tmpfs"))


class Need:
    """The bytes that a tree takes on this disk.

    `torn`: by digest, the bytes of a file that are already here. `copied`: digests of files to copy, besides `sources`.
    """

    def __init__(
        self,
        root: Path,
        entries: list[Entry],
        sources: dict[str, Source],
        torn: dict[str, int],
        copied: Collection[str] = (),
    ) -> None:
        self._root = root
        self._device = os.stat(root).st_dev  # noqa: PTH116
        self._entries = entries
        self._moved = {digest for digest, source in sources.items() if source.movable}
        self._copied = sources.keys() - self._moved | set(copied)
        self._torn = torn
        self._copies_take = _type_of(self._device) in COPIES_IN_FULL

    def about(self, changed: list[int] | None) -> dict[str, Any]:
        """Return the space for a `new` job directory, and for a change `in_place` of the files with these numbers.

        `free` is None if the file system does not report it. Nodes whose `disk` is the same share the free bytes.
        """
        files = [number for number, entry in enumerate(self._entries) if entry.kind == FILE]
        new = self._of(files) + BLOCK * sum(entry.kind == DIRECTORY for entry in self._entries)
        return {
            "path": str(self._root),
            "disk": f"{boot_id()} {self._device}",
            "free": free(self._root),
            "new": new,
            "in_place": None if changed is None else self._of(changed),
        }

    def _of(self, numbers: Iterable[int]) -> int:
        total = 0
        seen = set()
        for number in numbers:
            entry = self._entries[number]
            size = -(-entry.size // BLOCK) * BLOCK
            if entry.digest in seen or entry.digest in self._copied:
                total += size if self._copies_take else 0
            elif entry.digest not in self._moved:
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
        mounts = (PROC / "self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    types = (line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == wanted)
    return next(types, "")
