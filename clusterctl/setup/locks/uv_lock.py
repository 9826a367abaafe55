"""The packages that a uv.lock selects for a kind of node: what its project requires, and what that requires.

The format: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile. Versions of it differ in `revision`, which
older readers may ignore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from clusterctl.common.requirements import NAME, normal
from clusterctl.errors import ConfigError
from clusterctl.setup.locks.locked_files import (
    AGAIN,
    LOCAL_HINT,
    LockedFile,
    Package,
    inner_path,
    locked_file,
    pick_file,
    split_files,
)
from clusterctl.setup.locks.targets import Target

VERSION = 1
ROOT = "."
KINDS = ("virtual", "editable", "directory")  # of a source: code in a directory
Row = Mapping[str, Any]


class UvLock:
    """A parsed uv.lock. `where` names it in messages."""

    def __init__(self, where: str, data: Row) -> None:
        self._where = where
        if data.get("version") != VERSION:
            hint = "this clusterctl reads version 1; export one: uv export --format pylock.toml -o pylock.toml"
            raise ConfigError(f"{where} has version {data.get('version')!r} of the format", hint=hint)
        self._packages = [self._checked(row) for row in _rows(where, data, "package")]
        self._requires = data.get("requires-python")
        self._root = self._find_root()

    @property
    def names(self) -> list[str]:
        """The names of the packages that the project itself requires."""
        return sorted({str(row.get("name")) for row in _rows(self._where, self._root, "dependencies")})

    def select(self, target: Target) -> list[LockedFile]:
        """Return one file of every package to install: no extras of the project, no dependency groups."""
        self._check_python(target)
        extras: dict[int, set[str]] = {}
        todo: list[tuple[Row, str]] = [(self._root, "")]
        chosen: dict[int, Row] = {}
        while todo:
            package, extra = todo.pop()
            if extra in extras.setdefault(id(package), set()):
                continue
            extras[id(package)].add(extra)
            chosen[id(package)] = package
            for row, found in self._required(package, extra, target):
                todo += [(found, name) for name in ("", *(str(name) for name in row.get("extra") or ()))]
        files = [self._file(package, target) for package in chosen.values() if "virtual" not in self._source(package)]
        return self._unique(file for file in files if file is not None)

    def _unique(self, files: Iterator[LockedFile]) -> list[LockedFile]:
        by_name: dict[str, LockedFile] = {}
        for file in files:
            other = by_name.setdefault(file.name, file)
            if other is not file:
                raise ConfigError(
                    f"{self._where} selects {file.name} twice: {other.version} and {file.version}", hint=AGAIN
                )
        return sorted(by_name.values(), key=lambda file: file.name)

    def _checked(self, row: Row) -> Row:
        name = row.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(row.get("source"), dict):
            raise ConfigError(f"{self._where} is damaged: a package has no valid name or source: {name!r}", hint=AGAIN)
        return row

    def _source(self, package: Row) -> Mapping[str, Any]:
        source: Mapping[str, Any] = package["source"]
        return source

    def _find_root(self) -> Row:
        for package in self._packages:
            if any(self._source(package).get(kind) == ROOT for kind in KINDS):
                return package
        hint = "the lock of a project belongs beside its pyproject.toml; for one of its members, use uv export"
        raise ConfigError(f"{self._where} has no project in its own directory", hint=hint)

    def _check_python(self, target: Target) -> None:
        try:
            fits = SpecifierSet(str(self._requires or "")).contains(target.python, prereleases=True)
        except InvalidSpecifier as exc:
            raise ConfigError(f"{self._where}: requires-python: {exc}", hint=AGAIN) from exc
        if not fits:
            hint = "set PYTHON in conf.py to another interpreter, or lock for this one"
            raise ConfigError(f"{self._where} requires python {self._requires}, not {target.python}", hint=hint)

    def _required(self, package: Row, extra: str, target: Target) -> Iterator[tuple[Row, Row]]:
        """Yield the rows of what a package, or an extra of it, requires on the target; with the packages they mean."""
        rows = _rows(self._where, package, "dependencies")
        if extra:
            rows = _rows(self._where, package.get("optional-dependencies") or {}, extra)
        for row in rows:
            if self._holds(row.get("marker"), target):
                yield row, self._find(row, target)

    def _find(self, row: Row, target: Target) -> Row:
        found = [
            package
            for package in self._packages
            if package["name"] == row.get("name")
            and row.get("version") in (None, package.get("version"))
            and row.get("source") in (None, package["source"])
        ]
        if len(found) > 1:
            found = [package for package in found if self._is_for(package, target)]
        if len(found) != 1:
            raise ConfigError(f"{self._where} is damaged: {len(found)} packages fit {row.get('name')!r}", hint=AGAIN)
        return found[0]

    def _is_for(self, package: Row, target: Target) -> bool:
        markers = package.get("resolution-markers") or ()
        return not markers or any(self._holds(marker, target) for marker in markers)

    def _holds(self, marker: Any, target: Target) -> bool:
        if marker is None:
            return True
        try:
            return Marker(str(marker)).evaluate(cast("dict[str, str]", target.markers))
        except (InvalidMarker, InvalidVersion, UndefinedComparison, UndefinedEnvironmentName) as exc:
            raise ConfigError(f"{self._where}: cannot evaluate the marker {marker!r}: {exc}", hint=AGAIN) from exc

    def _file(self, package: Row, target: Target) -> LockedFile | None:
        """Return the file to install; None for the project itself."""
        name, source = package["name"], self._source(package)
        if package is self._root:
            return None
        where = f"{self._where}: {name}"
        if any(kind in source for kind in KINDS):
            directory = next(source[kind] for kind in KINDS if kind in source)
            raise ConfigError(f"{where} is the directory {directory!r}, which nodes do not have", hint=LOCAL_HINT)
        if "git" in source:
            raise ConfigError(f"{where} comes from git, which no hash verifies: {source['git']}", hint=LOCAL_HINT)
        wheels, sdist = split_files(self._files(package))
        return pick_file(Package(self._where, normal(name), wheels, sdist), target.ranks, target.name)

    def _files(self, package: Row) -> Iterator[LockedFile]:
        """Yield the wheels and the source distribution of a package, with the URLs and paths of its source."""
        source, index = self._source(package), None
        rows = [*_rows(self._where, package, "wheels"), *([package["sdist"]] if "sdist" in package else [])]
        if "registry" in source:
            index = str(source["registry"])
        is_local = index is not None and "://" not in index
        for row in rows:
            if not isinstance(row, dict):
                raise ConfigError(f"{self._where} is damaged: {package['name']}: {row!r} is not a table", hint=AGAIN)
            place = {key: source[key] for key in ("url", "path") if key in source}
            if is_local and "path" in row:
                place["path"] = str(inner_path(self._where, package["name"], str(index)) / str(row["path"]))
            version = str(package.get("version") or "0")
            yield locked_file(
                self._where, normal(package["name"]), version, {**row, **place}, None if is_local else index
            )


def _rows(where: str, table: Any, key: str) -> Sequence[Row]:
    rows = table.get(key, []) if isinstance(table, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{where} is damaged: {key!r} is not a list of tables", hint=AGAIN)
    return rows
