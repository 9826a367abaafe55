"""The directory of an export: complete or not there, and never in place of files of others."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError

MANIFEST = "export.json"  # lists the files of an export, so that the next one may replace them
SCHEMA = "clusterctl-export/1"


def usable(directory: Path) -> Path:
    """Return the absolute path of a directory to write to. Raises UsageError if it has files that no export wrote."""
    target = directory.resolve()
    if target == Path.cwd() or target == target.parent:
        raise UsageError(f"cannot export into {directory}, which is in use", hint="name a new directory")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="name a new directory")
    if target.is_dir() and _files(target) - _exported(target):
        raise UsageError(f"{directory} has files that no export wrote", hint="name a new directory, or an empty one")
    return target


def _files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}


def _exported(directory: Path) -> set[str]:
    """Return the files that an earlier export wrote."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] == SCHEMA:
            return {MANIFEST, *map(str, manifest["files"])}
    return set()


@contextlib.contextmanager
def replacing(target: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """Give a new directory beside `target`, which takes its place at the end, with `about` it in the manifest.

    After an error, `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    suffix = secrets.token_hex(4)
    new, old = (target.with_name(f".{target.name}-{word}-{suffix}") for word in ("new", "old"))
    new.mkdir()
    try:
        yield new
        manifest = {"schema": SCHEMA, **about, "files": sorted(_files(new))}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _exchange(target, new, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(target: Path, new: Path, old: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    usable(target)  # others may have written to it meanwhile
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
