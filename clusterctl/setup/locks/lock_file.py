"""Read the lock file of a workspace, and pick what a kind of node needs of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterctl.common.files import digest_of
from clusterctl.common.requirements import UV_LOCK, normal
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.errors import ConfigError, NodeError
from clusterctl.setup.locks.locked_files import AGAIN, UNIT, LockedFile
from clusterctl.setup.locks.pylock import Pylock
from clusterctl.setup.locks.targets import WheelTarget
from clusterctl.setup.locks.uv_export import export
from clusterctl.setup.platforms import Platform

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPI = ("https://pypi.org/simple", "https://pypi.org/simple/")
PYPI_FILES = "files.pythonhosted.org"


@dataclass(frozen=True)
class LockSelection:
    """The files for a kind of node.

    `urls` has places of wheels, by sha256. `pinned` are lines for pip: source distributions to build, and wheels whose
    size the lock does not say. `indexes` are the package indexes besides PyPI, as options of pip.
    """

    files: list[LockedFile]
    wheels: list[Wheel]
    urls: dict[str, str]
    pinned: list[str]
    indexes: list[str]

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return those of the projects that the lock does not have."""
        return [name for name in names if all(file.name != name for file in self.files)]

    def missing(self, wheels: Iterable[Wheel]) -> LockedFile | None:
        """Return a file of the lock that is not among the wheels. What is built from a source has another hash."""
        digests = {normal(wheel.name): wheel.digest for wheel in wheels}
        for file in self.files:
            if file.name not in digests or (file.is_wheel and digests[file.name] != file.digest):
                return file
        return None

    def verify(self, wheels: Iterable[Wheel], lock: str) -> None:
        """Raise NodeError unless the wheels are those of the lock."""
        file = self.missing(wheels)
        if file is not None:
            hint = "lock the project again if the package index has replaced it"
            what = f"{file.name} {file.version}"
            raise NodeError(f"{what}: pip got another file than {file.file} of {lock}", hint=hint)

    def allows(self, wheels: Sequence[Wheel], more: Iterable[str]) -> bool:
        """Return True if these are the wheels of the lock, with one of each project in `more` that it does not have."""
        names = sorted(normal(wheel.name) for wheel in wheels)
        expected = sorted([*(file.name for file in self.files), *self.absent(more)])
        return self.missing(wheels) is None and names == expected


class LockFile:
    """A lock file and its workspace, whose wheels it may name. `name` is the name of the file."""

    def __init__(self, path: Path, lock: Pylock) -> None:
        self.path = path
        self._lock = lock

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def names(self) -> list[str]:
        """The names of the locked projects."""
        return self._lock.names

    def pick(self, platform: Platform, store: WheelStore) -> LockSelection:
        """Return the files for a kind of node. Wheels of the workspace go to `store`, verified. Raises ConfigError."""
        files = self._lock.select(WheelTarget.of(platform))
        wheels = [self._adopt(file, store) for file in files if file.path is not None]
        sized = [file for file in files if file.path is None and file.is_wheel and file.size is not None]
        wheels += [Wheel(file.file, file.digest, file.size or 0) for file in sized]
        others = [file for file in files if file.path is None and file not in sized]
        urls = {file.digest: file.url for file in files if file.url is not None}
        indexes = sorted({file.index for file in files if file.index and file.index not in PYPI})
        return LockSelection(
            files, wheels, urls, [_pin(file) for file in others], [f"--extra-index-url {i}" for i in indexes]
        )

    def _adopt(self, file: LockedFile, store: WheelStore) -> Wheel:
        """Copy a wheel of the workspace to the store."""
        assert file.path is not None
        path = self.path.parent / file.path
        if not file.is_wheel:
            hint = "build a wheel of it, and lock that"
            raise ConfigError(f"{self.path}: {file.path} is a source distribution in the workspace", hint=hint)
        if not path.resolve().is_relative_to(self.path.parent.resolve()):
            raise ConfigError(f"{self.path}: {file.path} is a link that leads out of the workspace", hint=UNIT)
        with store.workplace() as workplace:
            copy = Path(workplace, file.file)
            try:
                shutil.copyfile(path, copy)
            except OSError as exc:
                raise ConfigError(f"{self.path}: cannot read {path}: {exc.strerror}", hint=AGAIN) from exc
            if digest_of(copy) != file.digest:
                what = f"{file.name} {file.version}: {path}"
                hint = f"lock the project again if you have built {path.name} anew"
                raise ConfigError(f"{what} does not match its sha256 in {self.path.name}", hint=hint)
            return store.adopt(copy)


def _pin(file: LockedFile) -> str:
    """Return a requirement that only this file meets: from any index with the version, else from its URL."""
    host = urlsplit(file.url or "").hostname
    if file.index or host == PYPI_FILES or file.url is None:
        return f"{file.name}=={file.version} --hash=sha256:{file.digest}"
    return f"{file.name} @ {file.url} --hash=sha256:{file.digest}"


def read_lock(path: Path, data: bytes) -> LockFile:
    """Parse a pylock.toml, or what uv exports of a uv.lock. Raises ConfigError."""
    try:
        parsed: dict[str, Any] = tomllib.loads((export(path) if path.name == UV_LOCK else data).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}", hint=AGAIN) from exc
    return LockFile(path, Pylock(str(path), parsed))
