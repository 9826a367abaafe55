"""Files as a stream of blobs: for each a header with its digest and size, then its bytes, possibly from an offset."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from clusterctl.common.shards import original
from clusterctl.common.tree import COPY_BYTES, DISPATCH_LATER, END, HEADER, Entry
from clusterctl.errors import NodeError

WRITE_BYTES = 256 * 1024
SAMPLE_BYTES = 256 * 1024
SHORT_BYTES = 4 << 20
COMPRESSES = 0.8
WHOLE: Mapping[str, int] = MappingProxyType({})


class Blobs:
    """A stream of the files `rows` below `top` and an end marker, optionally compressed. Several threads may write it.

    `resume`: by digest, the number of bytes to skip at the beginning of a file. A short stream is read and compressed
    only once. `total` counts bytes of files, `length` bytes of the stream before compression.
    """

    def __init__(
        self, top: Path, rows: Sequence[Entry], resume: Mapping[str, int] = WHOLE, *, compressed: bool = False
    ) -> None:
        self._top = top
        self._rows = rows
        self._resume = resume
        self.compressed = compressed
        self.total = sum(entry.size - resume.get(entry.digest, 0) for entry in rows)
        self.length = self.total + HEADER.size * (len(rows) + 1)
        self._lock = threading.Lock()
        self._made: list[tuple[bytes, int]] | None = None

    def write(self, write: Callable[[bytes], None], report: Callable[[int, int], None]) -> int:
        """Write the stream and return the bytes written. `report` gets the bytes of files done so far and in total."""
        done = count = 0
        report(done, self.total)
        for data, size in self._ready():
            if data:
                write(data)
            count += len(data)
            done += size
            report(done, self.total)
        return count

    def _ready(self) -> Iterable[tuple[bytes, int]]:
        if self.total > SHORT_BYTES:
            return self._make()
        with self._lock:
            if self._made is None:
                self._made = list(self._make())
            return self._made

    def _make(self) -> Iterator[tuple[bytes, int]]:
        compressor = zlib.compressobj(1) if self.compressed else None
        for piece, size in _pieces(self._top, self._rows, self._resume):
            yield (compressor.compress(piece) if compressor else piece), size
        if compressor:
            yield compressor.flush(), 0


class BlobCache:
    """A cache of the last `Blobs`, so that all nodes that lack the same files share one stream."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._lock = threading.Lock()
        self._key: object = None
        self._blobs = Blobs(top, ())

    def blobs(self, rows: Sequence[Entry], resume: Mapping[str, int]) -> Blobs:
        """Return the stream of these files, compressed if that pays off."""
        key = [(entry.digest, resume.get(entry.digest, 0)) for entry in rows]
        with self._lock:
            if key != self._key:
                self._key = key
                self._blobs = Blobs(self._top, rows, resume, compressed=_is_compressible(self._top, rows))
            return self._blobs


def _is_compressible(top: Path, rows: Sequence[Entry]) -> bool:
    """Return True if the beginning of the largest file compresses well."""
    if not rows:
        return False
    largest = max(rows, key=lambda entry: entry.size)
    try:
        with (top / original(largest.path)).open("rb") as f:
            sample = f.read(SAMPLE_BYTES)
    except OSError:
        return False
    return len(zlib.compress(sample, 1)) < COMPRESSES * len(sample)


def _pieces(top: Path, rows: Sequence[Entry], resume: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """Yield the stream in pieces, each with the number of bytes of files in it."""
    pending: list[bytes] = []
    waiting = 0
    for entry in rows:
        for data in _contents(top, entry, resume.get(entry.digest, 0)):
            pending.append(data)
            waiting += len(data)
            if waiting >= WRITE_BYTES:
                yield b"".join(pending), waiting
                pending, waiting = [], 0
    pending.append(HEADER.pack(bytes(32), END))
    yield b"".join(pending), waiting


def _contents(top: Path, entry: Entry, offset: int) -> Iterator[bytes]:
    """Yield a header and exactly the number of bytes that it announces."""
    left = entry.size - offset
    yield HEADER.pack(bytes.fromhex(entry.digest), left)
    try:
        with (top / original(entry.path)).open("rb", buffering=0) as f:
            f.seek(offset)
            while left:
                data = f.read(min(left, COPY_BYTES))
                if not data:
                    raise _changed(entry, "shrank while it was being sent")
                yield data
                left -= len(data)
    except OSError as exc:
        raise _changed(entry, f"can no longer be read: {exc.strerror}") from exc


def _changed(entry: Entry, problem: str) -> NodeError:
    """Return the error for a file that is no longer as it was when it was hashed. Its details name it as `changed`."""
    path = original(entry.path)
    return NodeError(f"{path!r} {problem}", hint=DISPATCH_LATER, details={"changed": path})
