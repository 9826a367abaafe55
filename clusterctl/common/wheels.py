"""Wheels: kept by their sha256, and unpacked into an environment without pip (the format of PEP 427)."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.files import digest_of
from clusterctl.common.tree import COPY_BYTES, END, HEADER

if TYPE_CHECKING:
    from clusterctl.common.tree import Stream

# Of a wheel: five or six parts of PEP 427. It becomes a path, and its parts lines of a requirements file.
FILE_NAME = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(-[A-Za-z0-9_.]+){3,4}\.whl")
DIGEST = re.compile(r"[0-9a-f]{64}")


class Wheel(NamedTuple):
    """A wheel of a lock: its file name, the sha256 of its bytes, their number."""

    file: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        return self.file.split("-")[0]

    @property
    def version(self) -> str:
        return self.file.split("-")[1]


def decode_lock(rows: Any) -> list[Wheel]:
    """The wheels of a lock from elsewhere. Raises `AgentError` for names that are more than names."""
    wheels = [Wheel(str(file), str(digest), int(size)) for file, digest, size in rows]
    for file, digest, size in wheels:
        if not FILE_NAME.fullmatch(file) or not DIGEST.fullmatch(digest) or size < 0:
            raise AgentError(f"{file!r} is not the name of a wheel", kind="refused")
    return wheels


def pinned(wheels: Iterable[Wheel]) -> list[str]:
    """Lines of a requirements file that no other bytes satisfy."""
    return [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.digest}" for wheel in wheels]


def describe(path: Path) -> Wheel:
    return Wheel(path.name, digest_of(path), path.stat().st_size)


class WheelStore:
    """A directory of wheels, `DIGEST/FILE` each; what is in it was verified when it came."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, wheel: Wheel) -> Path:
        return self.directory / wheel.digest / wheel.file

    def has(self, wheel: Wheel) -> bool:
        path = self.path(wheel)
        return path.is_file() and path.stat().st_size == wheel.size

    def workplace(self) -> tempfile.TemporaryDirectory[str]:
        """A directory on the same file system, gone afterwards."""
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".", dir=self.directory)

    def sweep(self) -> None:
        """Removes what interrupted calls left; only for who is alone here."""
        for place in self.directory.glob(".*"):
            shutil.rmtree(place, ignore_errors=True)

    def adopt(self, file: Path) -> Wheel:
        """Moves a wheel of a workplace in."""
        wheel = describe(file)
        self.path(wheel).parent.mkdir(0o700, exist_ok=True)
        file.replace(self.path(wheel))
        return wheel

    def take_blobs(self, lock: Sequence[Wheel], stream: Stream) -> None:
        """Stores what a stream of blobs has of a lock; what is not asked for, or not right, is passed over."""
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
        """Stores the bytes that `read(n)` gives, up to n at a time. `AgentError` when they are not the wheel's."""
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
                raise AgentError(f"{wheel.file} arrived with other contents than announced")
            self.adopt(beside)
