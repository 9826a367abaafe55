"""Descriptions of directory trees, for comparison, and the programs in one."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

from clusterctl.common.paths import RESERVED


def described(top: Path) -> dict[str, tuple[object, ...]]:
    """Return kind, mode, time and contents of everything below `top` that a dispatch must preserve."""
    entries: dict[str, tuple[object, ...]] = {}
    for folder, directories, files in os.walk(top):
        for name in directories + files:
            path = Path(folder, name)
            entries[os.path.relpath(path, top)] = _described(path)
    # Reserved names are ours, not the workspace's.
    return {name: description for name, description in entries.items() if name.split("/")[0] not in RESERVED}


def _described(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(kind):
        return kind, status.st_mtime_ns, path.readlink()
    return kind, mode, status.st_mtime_ns, path.read_bytes() if stat.S_ISREG(kind) else None


def import_programs(workspace: Path, names: Collection[str]) -> SimpleNamespace:
    """Return a workspace's programs as modules; their common names do not stay in sys.modules."""
    sys.path.insert(0, str(workspace))
    try:
        modules = {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(workspace))
        for name in names:
            sys.modules.pop(name, None)
    return SimpleNamespace(**modules)
