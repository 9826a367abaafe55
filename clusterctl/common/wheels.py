"""Wheels, and a store of wheels by their sha256."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.files import digest_of
from clusterctl.common.tree import COPY_BYTES, END, HEADER, ByteReader

# A wheel's name has five or six parts (PEP 427). It becomes a path, and its parts become requirements.
FILE_NAME = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(-[A-Za-z0-9_.]+){3,4}\.whl")
DIGEST = re.compile(r"[0-9a-f]{64}")


class Wheel(NamedTuple):
    """A wheel of a lock: its file name, sha256 and size in bytes."""

    file: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        return self.file.split("-")[0]

    @property
    def version(self) -> str:
        return self.file.split("-")[1]


class WrongContentsError(AgentError):
    """The bytes of a wheel are not those of its hash."""

    def __init__(self, file: str = "a wheel") -> None:
        super().__init__(f"{file} does not have the announced contents")


def decode_lock(rows: Any) -> list[Wheel]:
    """Return the wheels of a received lock. Raises `AgentError` if a name is not a plain wheel name."""
    wheels = [Wheel(str(file), str(digest), int(size)) for file, digest, size in rows]
    for file, digest, size in wheels:
        if not FILE_NAME.fullmatch(file) or not DIGEST.fullmatch(digest) or size < 0:
            raise AgentError(f"{file!r} is not the name of a wheel", kind="refused")
    return wheels


def pinned(wheels: Iterable[Wheel]) -> list[str]:
    """Return lines for a requirements file that accept exactly these wheels."""
    return [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.digest}" for wheel in wheels]


def describe(path: Path) -> Wheel:
    return Wheel(path.name, digest_of(path), path.stat().st_size)


class WheelStore:
    """A directory of wheels, each `DIGEST/FILE`; all were verified on arrival."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, wheel: Wheel) -> Path:
        return self.directory / wheel.digest / wheel.file

    def has(self, wheel: Wheel) -> bool:
        path = self.path(wheel)
        return path.is_file() and path.stat().st_size == wheel.size

    def workplace(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary directory on the same file system."""
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".", dir=self.directory)

    def sweep(self) -> None:
        """Remove the leftovers of interrupted calls. The caller must hold the lock."""
        for leftover in self.directory.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def adopt(self, file: Path) -> Wheel:
        """Move a wheel from a workplace into the store."""
        wheel = describe(file)
        self.path(wheel).parent.mkdir(0o700, exist_ok=True)
        file.replace(self.path(wheel))
        return wheel

    def take_blobs(self, lock: Sequence[Wheel], stream: ByteReader) -> None:
        """Store the wheels of a lock from a stream of blobs. Skip those not in the lock, and damaged ones."""
        wanted = {wheel.digest: wheel for wheel in lock}
        while True:
            digest, size = HEADER.unpack(stream.exactly(HEADER.size))
            if size == END:
                return
            wheel = wanted.get(digest.hex())
            if wheel is None or wheel.size != size or self.has(wheel):
                stream.skip(size)
                continue
            with contextlib.suppress(AgentError):
                self.take(wheel, stream.some)

    def take(self, wheel: Wheel, read: Callable[[int], bytes | memoryview]) -> None:
        """Store a wheel from `read(n)`, which returns up to n bytes. Raises `AgentError` if they do not match."""
        with self.workplace() as workplace:
            beside = Path(workplace, wheel.file)
            left = wheel.size
            with beside.open("xb") as f:
                while left:
                    data = read(min(left, COPY_BYTES))
                    if not data:
                        raise AgentError(f"the stream ended within {wheel.file}")
                    f.write(data)
                    left -= len(data)
            if describe(beside) != wheel:
                raise WrongContentsError(wheel.file)
            self.adopt(beside)
