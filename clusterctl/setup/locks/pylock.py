"""The packages that a pylock.toml (PEP 751) selects for a kind of node: no extras, its default groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from packaging import pylock
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.version import InvalidVersion

from clusterctl.common.requirements import normal
from clusterctl.errors import ConfigError
from clusterctl.setup.locks.locked_files import AGAIN, LOCAL_HINT, LockedFile, locked_file
from clusterctl.setup.locks.targets import WheelTarget

UNDEFINED = (InvalidVersion, UndefinedComparison, UndefinedEnvironmentName)


class Pylock:
    """A parsed pylock.toml. `where` names it in messages."""

    def __init__(self, where: str, data: Mapping[str, Any]) -> None:
        self._where = where
        version = data.get("lock-version", "1.0")
        if str(version).partition(".")[0] != "1":
            raise ConfigError(f"{where} has lock-version {version!r}", hint="this clusterctl reads lock-version 1.0")
        try:
            self._lock = pylock.Pylock.from_dict(data)
        except (pylock.PylockValidationError, ValueError, TypeError, KeyError) as exc:
            raise ConfigError(f"{where} is damaged: {exc}", hint=AGAIN) from exc

    @property
    def names(self) -> list[str]:
        return sorted({str(package.name) for package in self._lock.packages})

    def select(self, target: WheelTarget) -> list[LockedFile]:
        """Return one file of every package to install."""
        try:
            chosen = list(self._lock.select(environment=target.markers, tags=target.tags))
        except (pylock.PylockSelectError, *UNDEFINED) as exc:
            hint = "lock for these nodes too, or set PYTHON in conf.py to another interpreter"
            raise ConfigError(f"{self._where} has nothing for {target.name}: {exc}", hint=hint) from exc
        return [self._file(package, file) for package, file in chosen if not _is_project(file)]

    def _file(self, package: pylock.Package, file: object) -> LockedFile:
        name = normal(package.name)
        if isinstance(file, pylock.PackageDirectory):
            where = f"{self._where}: {name}"
            raise ConfigError(f"{where} is the directory {file.path!r}, which nodes do not have", hint=LOCAL_HINT)
        if isinstance(file, pylock.PackageVcs):
            place = file.url or file.path
            raise ConfigError(
                f"{self._where}: {name} comes from {file.type}, which no hash verifies: {place}", hint=LOCAL_HINT
            )
        assert isinstance(file, (pylock.PackageWheel, pylock.PackageSdist, pylock.PackageArchive))
        row = {"url": file.url, "path": file.path, "size": file.size, "hash": file.hashes.get("sha256")}
        if not isinstance(file, pylock.PackageArchive):
            row["filename"] = file.filename
        return locked_file(self._where, name, str(package.version or "0"), row, package.index)


def _is_project(file: object) -> bool:
    """Return True for the project that was locked, whose code is in the workspace."""
    return isinstance(file, pylock.PackageDirectory) and PurePosixPath(file.path) == PurePosixPath(".")
