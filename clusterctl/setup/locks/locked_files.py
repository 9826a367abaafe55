"""The files that a lock file names for a package, and the wheel among them that fits a kind of node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from clusterctl.common.wheels import DIGEST, FILE_NAME
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


@dataclass(frozen=True)
class Package:
    """A package to install: where its error messages place it, and its files."""

    where: str
    name: str
    wheels: Sequence[LockedFile]
    sdist: LockedFile | None


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


def pick_file(package: Package, ranks: Mapping[Tag, int], kind: str) -> LockedFile:
    """Return the wheel that fits best, else the source distribution. Raises ConfigError if there is neither."""
    rated = [(rank, wheel) for wheel in package.wheels if (rank := _rank(wheel, ranks)) is not None]
    if rated:
        return min(rated, key=lambda item: (item[0], item[1].file))[1]
    if package.sdist is None:
        hint = "lock a version that has a wheel for these nodes, or set PYTHON in conf.py to another interpreter"
        raise ConfigError(f"{package.where}: no wheel of {package.name} runs on {kind}", hint=hint)
    return package.sdist


def _rank(wheel: LockedFile, ranks: Mapping[Tag, int]) -> tuple[int, int] | None:
    """Return a number that is smaller for a better tag, and one that is smaller for a newer build."""
    try:
        _, _, build, tags = parse_wheel_filename(wheel.file)
    except InvalidWheelFilename:
        return None
    found = [ranks[tag] for tag in tags if tag in ranks]
    return (min(found), -build[0] if build else 0) if found else None


def split_files(files: Iterable[LockedFile]) -> tuple[list[LockedFile], LockedFile | None]:
    """Return the wheels among the files, and the source distribution if there is one."""
    every = list(files)
    return [file for file in every if file.is_wheel], next((file for file in every if not file.is_wheel), None)
