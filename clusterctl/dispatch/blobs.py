"""Files as a stream of blobs: before each its digest and its size, then its bytes, or those from an offset on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from clusterctl.agent.tree import COPY_BYTES, END, HEADER, Entry
from clusterctl.errors import NodeError

WRITE_BYTES = 256 * 1024
SAMPLE_BYTES = 256 * 1024
COMPRESSES = 0.8
WHOLE: Mapping[str, int] = MappingProxyType({})


def write_blobs(
    write: Callable[[bytes], None],
    top: Path,
    rows: Sequence[Entry],
    report: Callable[[int, int], None],
    *,
    resume: Mapping[str, int] = WHOLE,
    compressed: bool = False,
) -> int:
    """Writes the files `rows` below `top`, and an end; the bytes written.

    `resume`: how much, by digest, is left out at the beginning. `report` hears of bytes done and in all.
    """
    compressor = zlib.compressobj(1) if compressed else None
    total = sum(entry.size - resume.get(entry.digest, 0) for entry in rows)
    done = count = 0
    report(done, total)
    for piece, size in _pieces(top, rows, resume):
        data = compressor.compress(piece) if compressor else piece
        if data:
            write(data)
        count += len(data)
        done += size
        report(done, total)
    if compressor:
        tail = compressor.flush()
        write(tail)
        count += len(tail)
    return count


def stream_bytes(rows: Sequence[Entry], resume: Mapping[str, int] = WHOLE) -> int:
    """How long the uncompressed stream of these files is."""
    return sum(entry.size - resume.get(entry.digest, 0) + HEADER.size for entry in rows) + HEADER.size


def is_compressible(top: Path, rows: Sequence[Entry]) -> bool:
    """Whether it is worth it, from the beginning of the largest file."""
    if not rows:
        return False
    largest = max(rows, key=lambda entry: entry.size)
    try:
        with (top / largest.path).open("rb") as f:
            sample = f.read(SAMPLE_BYTES)
    except OSError:
        return False
    return len(zlib.compress(sample, 1)) < COMPRESSES * len(sample)


def _pieces(top: Path, rows: Sequence[Entry], resume: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """The stream, in pieces, each with how many bytes of files are in it."""
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
    """A header, and as many bytes as it says."""
    left = entry.size - offset
    yield HEADER.pack(bytes.fromhex(entry.digest), left)
    try:
        with open(f"{top}/{entry.path}", "rb", buffering=0) as f:  # noqa: PTH123
            f.seek(offset)
            while left:
                data = f.read(min(left, COPY_BYTES))
                if not data:
                    raise NodeError(f"{entry.path!r} became shorter while it was sent", hint="dispatch again")
                yield data
                left -= len(data)
    except OSError as exc:
        raise NodeError(f"{entry.path!r} cannot be read any more: {exc.strerror}", hint="dispatch again") from exc
