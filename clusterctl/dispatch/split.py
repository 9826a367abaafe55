"""Split a data file into shards, record by record, streaming."""

from __future__ import annotations

import contextlib
import gzip
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from clusterctl.errors import ConfigError, RefusedError, UsageError

READ_BYTES = 1 << 20
BUFFERED_BYTES = 32 << 20  # for all shards together
PACKED = (".bz2", ".xz", ".zst", ".zip", ".lz4", ".7z")


@dataclass(frozen=True)
class Shard:
    path: Path
    records: int
    bytes: int


def split(source: Path, count: int, delimiter: bytes, output: Path | None = None) -> list[Shard]:
    """Split the records of `source` into `count` files NAME-00000, ... in `output`, by default next to `source`.

    Record i goes to shard i mod count, byte for byte and with its delimiter; a last record without one is left so.
    NAME.gz is decompressed into shards of NAME. All shards appear at the end, or none. Raises RefusedError if shards of
    that name exist, UsageError for fewer records than shards, ConfigError if reading or writing fails.
    """
    if source.suffix in PACKED:
        raise ConfigError(
            f"{source} is compressed in a format that split cannot read", hint="decompress it first, or use .gz"
        )
    directory = output or source.parent
    stem = source.stem if source.suffix == ".gz" else source.name
    with _open(source) as file, _writing(directory):
        existed = directory.is_dir()
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _refuse_existing(directory, stem)
            with tempfile.TemporaryDirectory(prefix=".split-", dir=directory) as temporary:
                writer = _ShardWriter(Path(temporary), count)
                writer.write(_blocks(file, source), delimiter)
                if writer.total < count:
                    raise UsageError(
                        f"{source} has {writer.total} record(s), fewer than the {count} requested shards",
                        hint="use a smaller --count or a different --delimiter",
                    )
                return _publish(writer, directory, stem)
        except BaseException:
            if not existed:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise


class _ShardWriter:
    """Writes shards below `directory`. Buffered data is bounded, and no file is kept open."""

    def __init__(self, directory: Path, count: int) -> None:
        self.paths = [directory / f"{number:05d}" for number in range(count)]
        self.total = 0  # records, including one that is still incomplete
        self.bytes = [0] * count
        self._buffers = [bytearray() for _ in range(count)]
        self._limit = BUFFERED_BYTES // count

    def write(self, blocks: Iterator[bytes], delimiter: bytes) -> None:
        """Distribute the records in `blocks` over the shards."""
        for path in self.paths:
            path.touch()
        tail = b""  # the end of a block, which may be the beginning of a delimiter
        within = False  # True inside a record that has no delimiter yet
        for block in blocks:
            *ended, rest = (tail + block).split(delimiter)
            if ended:
                self._add_whole(ended, delimiter, within)
                within = False
            keep = len(rest) - min(len(rest), len(delimiter) - 1)
            rest, tail = rest[:keep], rest[keep:]
            within = self._add_part(rest, within)
        self._add_part(tail, within)
        for number in range(len(self.paths)):
            self._flush(number)

    def _add_whole(self, records: list[bytes], delimiter: bytes, within: bool) -> None:
        """Add complete records to their shards. If `within`, the first one completes the record already begun."""
        count, first = len(self.paths), self.total - within
        for offset in range(min(count, len(records))):
            mine = records[offset::count]
            mine.append(b"")
            self._add((first + offset) % count, delimiter.join(mine))
        self.total = first + len(records)

    def _add_part(self, part: bytes, within: bool) -> bool:
        """Add to the incomplete record, or begin one. Return True if a record is incomplete now."""
        if part:
            self.total += not within
            self._add((self.total - 1) % len(self.paths), part)
        return within or bool(part)

    def _add(self, number: int, data: bytes) -> None:
        self._buffers[number] += data
        if len(self._buffers[number]) > self._limit:
            self._flush(number)

    def _flush(self, number: int) -> None:
        with self.paths[number].open("ab") as f:
            f.write(self._buffers[number])
        self.bytes[number] += len(self._buffers[number])
        self._buffers[number].clear()


def _publish(writer: _ShardWriter, directory: Path, stem: str) -> list[Shard]:
    """Rename all shards to their final names, or no shard if another split has made some in the meantime."""
    count = len(writer.paths)
    placed: list[Path] = []
    shards = []
    try:
        _refuse_existing(directory, stem)
        for number, path in enumerate(writer.paths):
            target = directory / f"{stem}-{number:05d}"
            placed.append(target)
            path.rename(target)
            records = writer.total // count + (number < writer.total % count)
            shards.append(Shard(target, records, writer.bytes[number]))
    except BaseException:
        for target in placed:
            target.unlink(missing_ok=True)
        raise
    return shards


def _refuse_existing(directory: Path, stem: str) -> None:
    """Raise RefusedError if shards of that name exist. Any beyond `count` would pass for shards of this split."""
    name = re.compile(re.escape(stem) + r"-\d{5,}")
    existing = sorted(path.name for path in directory.iterdir() if name.fullmatch(path.name))
    if existing:
        raise RefusedError(
            f"{directory} already has shards of that name: {existing[0]}" + (", ..." if len(existing) > 1 else ""),
            hint="remove them, or choose another directory with -o DIR",
        )


def _open(source: Path) -> BinaryIO:
    try:
        if source.is_dir():
            raise ConfigError(f"{source} is a directory", hint="pass a single file of records")
        return gzip.open(source) if source.suffix == ".gz" else source.open("rb")  # type: ignore[return-value]
    except OSError as exc:
        raise ConfigError(f"cannot read {source}: {exc.strerror}") from exc


def _blocks(file: BinaryIO, source: Path) -> Iterator[bytes]:
    try:
        while block := file.read(READ_BYTES):
            yield block
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"cannot read {source}: {exc}", hint="check that the file is complete") from exc


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigError(
            f"cannot write shards into {directory}: {exc.strerror}",
            hint="no shards were left there; choose another directory with -o DIR",
        ) from exc
