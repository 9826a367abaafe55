"""The longest paths that this node's file system and system calls accept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from clusterctl.common.errors import AgentError
from clusterctl.common.tree import Entry, shortened

PATH_BYTES = 4095  # of Linux, without the terminating zero
CHARACTER_BYTES = 4  # at most


def check_lengths(root: Path, entries: Iterable[Entry], above: str) -> None:
    """Raise AgentError for a path that cannot be created: `above`, below which all are made, counts too."""
    name_bytes = os.pathconf(root, "PC_NAME_MAX")
    left = PATH_BYTES - len(os.fsencode(above)) - 1
    for entry in entries:
        if len(entry.path) * CHARACTER_BYTES <= min(name_bytes, left):
            continue
        path = os.fsencode(entry.path)
        longest = max(map(len, path.split(b"/")))
        if longest > name_bytes:
            problem = f"it has a name of {longest} bytes, and the file system of {root} allows {name_bytes}"
            hint = "shorten the name, or set ROOT_DIR to another file system"
        elif len(path) > left:
            problem = f"it has {len(path)} bytes, and {left} are left below {root}"
            hint = "shorten the path, or set ROOT_DIR to a shorter one"
        else:
            continue
        raise AgentError(f"the path {shortened(entry.path)!r} is too long: {problem}", hint=hint)
