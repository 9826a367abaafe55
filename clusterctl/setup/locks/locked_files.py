"""A file that a lock file names for a package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from clusterctl.common.file_transfer import DIGEST
from clusterctl.common.wheels import FILE_NAME
from clusterctl.errors import ConfigError

SDIST = re.compile(r"[A-Za-z0-9_.+!-]+\.(tar\.gz|zip)")
VERSION = re.compile(r"[A-Za-z0-9_.+!-]+")
UNIT = "packages come from an http(s) URL, or from a wheel in the workspace by its path"
AGAIN = "lock the project again"
LOCAL_HINT = "put your own code in the workspace; build a wheel of a package that is not on an index"


@dataclass(frozen=True)
class LockedFile:
    """A wheel or source distribution of a package. `size` in bytes; None: unknown.

    `url` is its http(s) URL, or `path` its path in the workspace. `index` is the package index that has it, if known.
    """

    name: str
    version: str
    file: str
    digest: str
    size: int | None
    url: str | None
    path: PurePosixPath | None
    index: str | None

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


def locked_file(where: str, name: str, version: str, row: Mapping[str, Any], index: str | None) -> LockedFile:
    """Return a validated file: its name becomes a path here and on the nodes, its URL is fetched.

    `row` has `url` or `path`, `hash` (sha256:HEX), and maybe `size` and `filename`. Raises ConfigError.
    """
    url, path = row.get("url"), row.get("path")
    try:
        parts = urlsplit(str(url or path or ""))
    except ValueError as exc:
        raise ConfigError(f"{where}: {name}: {str(url)!r} is not a URL: {exc}", hint=AGAIN) from exc
    file = row.get("filename") or unquote(PurePosixPath(parts.path).name)
    digest = str(row.get("hash") or "").removeprefix("sha256:")
    size = row.get("size")
    if not isinstance(file, str) or not (FILE_NAME.fullmatch(file) or SDIST.fullmatch(file)):
        raise ConfigError(f"{where}: {name}: {str(url or path)!r} is not a wheel or source distribution", hint=UNIT)
    if not DIGEST.fullmatch(digest):
        hint = "lock it again with hashes; the files of a local index have none: give each its path"
        raise ConfigError(f"{where}: {name} {version}: no sha256 for {file}", hint=hint)
    if url is not None and parts.scheme not in ("http", "https"):
        raise ConfigError(f"{where}: {name}: {str(url)!r} is not a URL that nodes can fetch", hint=UNIT)
    if not VERSION.fullmatch(version):
        raise ConfigError(f"{where}: {name}: {version!r} is not a version", hint=AGAIN)
    known = size if isinstance(size, int) and size > 0 else None
    inside = None if path is None else inner_path(where, name, str(path))
    return LockedFile(name, version, file, digest, known, url, inside, index)


def inner_path(where: str, name: str, path: str) -> PurePosixPath:
    """Return a path of a lock file if it stays in the workspace. Raises ConfigError."""
    inside = PurePosixPath(path)
    if inside.is_absolute() or ".." in inside.parts or "\\" in path or "\0" in path:
        raise ConfigError(f"{where}: {name}: {path!r} is outside the workspace", hint="put the wheel in the workspace")
    return inside
