"""One transfer of files: sized, hashed and resumable, for `collect`, the wheels of `setup`, and the pieces of saves.

The sender opens a file (`OpenedFile`) and sends its bytes from the first one that the receiver lacks. The receiver
appends them to a part (`Arrival`), which a later attempt continues. When all bytes are there and have the right hash,
the part takes the place of the file, whose earlier contents stay until then.

A receiver that knows the hash in advance (wheels, pieces) asks for what comes after its part; a wrong part has a wrong
hash in the end, and the file is sent once more from its start. One that does not (logs and outputs, which change)
names the hash of the bytes that it has (`KnownBytes`), and the sender compares them with its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NamedTuple

from clusterctl.common.files import sync_directory
from clusterctl.common.schema import Bound, Count

CHUNK_BYTES = 1 << 18
DIGEST = re.compile(r"[0-9a-f]{64}")

Sha256 = Annotated[str, Bound("a sha256", lambda text: DIGEST.fullmatch(text) is not None)]
Heartbeat = Callable[[], None]


class TransferError(OSError):
    """A file cannot be sent or received. The message is for people."""


class KnownBytes(NamedTuple):
    """The first bytes of a file that the receiver has. `key` stands for the name of the file, see `key_of`."""

    key: str
    bytes: Count
    sha256: Sha256


def key_of(name: str) -> str:
    """Return a short name without odd characters for a path of any length."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


class HashedBytes:
    """The first bytes of a file in `path`, hashed; more can be added to the hash."""

    def __init__(self, path: Path, heartbeat: Heartbeat = lambda: None) -> None:
        self.path = path
        self.bytes = 0
        self.digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                self.digest.update(data)
                self.bytes += len(data)
                heartbeat()

    @property
    def sha256(self) -> str:
        return self.digest.hexdigest()


class OpenedFile:
    """A regular file that is sent: a rename or a removal in the meantime does not change that. Links are not followed.

    Raises OSError if it cannot be opened, ValueError if it is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        self.status = os.fstat(self._fd)
        if not stat.S_ISREG(self.status.st_mode):
            self.close()
            raise ValueError(f"{path} is not a regular file")
        self.size = self.status.st_size

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `stop`. Raises TransferError if the file has become shorter."""
        while start < stop:
            data = os.pread(self._fd, min(CHUNK_BYTES, stop - start), start)
            if not data:
                raise TransferError(f"{self.name} became shorter while it was read")
            yield data
            start += len(data)

    def sha256(self, heartbeat: Heartbeat = lambda: None) -> str:
        """Return the hash of the whole file."""
        digest = hashlib.sha256()
        self._hash(digest, 0, self.size, heartbeat)
        return digest.hexdigest()

    def resume(self, known: Sequence[KnownBytes], heartbeat: Heartbeat = lambda: None) -> tuple[int, Any]:
        """Return how many bytes the receiver has, as far as it has the same ones, and the sha256 object of these."""
        start, found = 0, hashlib.sha256()
        at, digest = 0, hashlib.sha256()
        for one in sorted(known, key=lambda one: one.bytes):
            if one.bytes <= self.size:
                self._hash(digest, at, one.bytes, heartbeat)
                at = one.bytes
                if digest.hexdigest() == one.sha256:
                    start, found = at, digest.copy()
        return start, found

    def _hash(self, digest: Any, start: int, stop: int, heartbeat: Heartbeat) -> None:
        for data in self.read(start, stop):
            digest.update(data)
            heartbeat()


class Arrival:
    """A file of `size` bytes that arrives: `part` has the first of them, and takes the place `target` in the end.

    The bytes of the part that an earlier attempt left count, unless `restart` is called. A context manager: a part
    without any bytes is not left behind.
    """

    def __init__(self, target: Path, part: Path, size: int, begun: HashedBytes | None = None) -> None:
        self._target = target
        self._part = part
        self.size = size
        if begun is None and part.is_file() and not part.is_symlink():
            begun = HashedBytes(part)
        self._is_in_place = begun is not None and begun.path == target
        if begun is None or begun.bytes > size:
            self.restart()
        else:
            self.have = begun.bytes
            self._digest = begun.digest.copy()

    def restart(self) -> None:
        """Forget all bytes."""
        self._part.unlink(missing_ok=True)
        self.have = 0
        self._digest = hashlib.sha256()
        self._is_in_place = False

    def append(self, data: Iterable[bytes | memoryview]) -> None:
        """Add bytes, which are kept if the iterable raises. Raises ValueError for more bytes than the file has."""
        if self.have == self.size:
            return
        if self._is_in_place:
            shutil.copyfile(self._target, self._part)
            self._is_in_place = False
        with self._part.open("ab") as file:
            for piece in data:
                if self.have + len(piece) > self.size:
                    raise ValueError(f"more than {self.size} bytes")
                file.write(piece)
                self._digest.update(piece)
                self.have += len(piece)

    def finish(self, sha256: str, dress: Callable[[Path], None] = lambda path: None, *, durable: bool = True) -> bool:
        """Put the file into its place if it is whole and has this hash; else forget all bytes and return False.

        `dress` gets the path of the file before, to set its attributes. With `durable` it is on the disk before.
        """
        if self.have < self.size or self._digest.hexdigest() != sha256:
            self.restart()
            return False
        if self._is_in_place:
            dress(self._target)
            return True
        with self._part.open("ab") as file:
            if durable:
                os.fsync(file.fileno())
        dress(self._part)
        self._part.replace(self._target)
        if durable:
            sync_directory(self._target.parent)
        return True

    def __enter__(self) -> Arrival:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.have and self.size:
            with contextlib.suppress(OSError):
                self._part.unlink()
