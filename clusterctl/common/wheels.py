"""Wheels, and a store of wheels by their sha256."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.file_transfer import CHUNK_BYTES, Arrival, Sha256
from clusterctl.common.files import delete, digest_of
from clusterctl.common.schema import Bound, Count
from clusterctl.common.tree import END, HEADER, ByteReader

# A wheel's name has five or six parts (PEP 427). It becomes a path, and its parts become requirements.
FILE_NAME = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(-[A-Za-z0-9_.]+){3,4}\.whl")
WheelName = Annotated[str, Bound("the name of a wheel", lambda name: FILE_NAME.fullmatch(name) is not None)]


class Wheel(NamedTuple):
    """A wheel of a lock: its file name, sha256 and size in bytes."""

    file: WheelName
    digest: Sha256
    size: Count

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


def pinned(wheels: Iterable[Wheel]) -> list[str]:
    """Return lines for a requirements file that accept exactly these wheels."""
    return [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.digest}" for wheel in wheels]


def describe(path: Path) -> Wheel:
    return Wheel(path.name, digest_of(path), path.stat().st_size)


class WheelStore:
    """A directory of wheels, each `DIGEST/FILE`; all were verified on arrival.

    With `keeps_parts`, a wheel that has arrived in part is continued; a lock must then exclude other users of the
    store.
    """

    def __init__(self, directory: Path, *, keeps_parts: bool = False) -> None:
        self.directory = directory
        self._keeps_parts = keeps_parts

    def path(self, wheel: Wheel) -> Path:
        return self.directory / wheel.digest / wheel.file

    def has(self, wheel: Wheel) -> bool:
        path = self.path(wheel)
        return path.is_file() and path.stat().st_size == wheel.size

    def workplace(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary directory on the same file system."""
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".", dir=self.directory)

    def sweep(self, *, parts: bool = False) -> None:
        """Remove the leftovers of interrupted calls, except parts of wheels. The caller must hold the lock."""
        for leftover in self.directory.glob(".*"):
            if parts or leftover.is_dir():
                delete(leftover)

    def begun(self, wheels: Iterable[Wheel]) -> dict[str, int]:
        """Return by sha256 the number of bytes that earlier calls have left of these wheels."""
        sizes = {wheel: _size(self._part(wheel)) for wheel in wheels}
        return {wheel.digest: size for wheel, size in sizes.items() if 0 < size <= wheel.size}

    def _part(self, wheel: Wheel) -> Path:
        return self.directory / f".{wheel.digest}.part"

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

    def take(self, wheel: Wheel, read: Callable[[int], bytes | memoryview], start: int = 0) -> None:
        """Store a wheel from `read(n)`, which returns up to n bytes of those after the first `start`, which are here.

        Raises `AgentError` if they end early, and WrongContentsError if they are not those of the wheel.
        """
        with self._arriving(wheel, start) as arrival:
            arrival.append(_pieces(wheel, read, arrival.have))
            if not arrival.finish(wheel.digest, lambda part: self.path(wheel).parent.mkdir(0o700, exist_ok=True)):
                raise WrongContentsError(wheel.file)

    @contextlib.contextmanager
    def _arriving(self, wheel: Wheel, start: int) -> Iterator[Arrival]:
        with self.workplace() as workplace:
            part = self._part(wheel) if self._keeps_parts else Path(workplace, wheel.file)
            if not start:
                part.unlink(missing_ok=True)
            with Arrival(self.path(wheel), part, wheel.size) as arrival:
                if arrival.have != start:
                    raise AgentError(f"it has {arrival.have} bytes of {wheel.file}, not {start}")
                yield arrival


def _pieces(wheel: Wheel, read: Callable[[int], bytes | memoryview], have: int) -> Iterator[bytes | memoryview]:
    while have < wheel.size:
        data = read(min(wheel.size - have, CHUNK_BYTES))
        if not data:
            raise AgentError(f"the stream ended within {wheel.file}")
        have += len(data)
        yield data


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
