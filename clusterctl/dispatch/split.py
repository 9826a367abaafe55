"""Splits a data file into shards, one record after the other, streaming."""

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
BUFFERED_BYTES = 32 << 20  # of all shards together
PACKED = (".bz2", ".xz", ".zst", ".zip", ".lz4", ".7z")


@dataclass(frozen=True)
class Shard:
    path: Path
    records: int
    bytes: int


def split(source: Path, count: int, delimiter: bytes, output: Path | None = None) -> list[Shard]:
    """Deals the records of `source` to `count` files NAME-00000, ... in `output`, or else beside it.

    Record i goes to shard i mod count, with its delimiter, byte for byte; a last record without one stays as it is.
    NAME.gz is unpacked into shards of NAME. All shards appear at the end, or none. Raises RefusedError when there are
    shards of that name, UsageError for fewer records than shards, ConfigError when reading or writing fails.
    """
    if source.suffix in PACKED:
        raise ConfigError(
            f"{source} is compressed, and its records are not visible", hint="unpack it first, or use .gz"
        )
    directory = output or source.parent
    stem = source.stem if source.suffix == ".gz" else source.name
    with _open(source) as file, _writing(directory):
        existed = directory.is_dir()
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _refuse_existing(directory, stem)
            with tempfile.TemporaryDirectory(prefix=".split-", dir=directory) as beside:
                hands = _Hands(Path(beside), count)
                hands.deal(_blocks(file, source), delimiter)
                if hands.total < count:
                    raise UsageError(
                        f"{source} holds {hands.total} record(s), fewer than the {count} shards asked for",
                        hint="a smaller --count, or another --delimiter",
                    )
                return _publish(hands, directory, stem)
        except BaseException:
            if not existed:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise


class _Hands:
    """The shards being dealt, below `directory`; what is not yet written is bounded, and no file is kept open."""

    def __init__(self, directory: Path, count: int) -> None:
        self.paths = [directory / f"{number:05d}" for number in range(count)]
        self.total = 0  # records begun
        self.bytes = [0] * count
        self._waiting = [bytearray() for _ in range(count)]
        self._limit = BUFFERED_BYTES // count

    def deal(self, blocks: Iterator[bytes], delimiter: bytes) -> None:
        """`tail` is the end of a block that may be the beginning of a delimiter."""
        for path in self.paths:
            path.touch()
        tail, within = b"", False  # whether the last record has begun and not ended
        for block in blocks:
            *ended, rest = (tail + block).split(delimiter)
            if ended:
                self._deal_whole(ended, delimiter, within)
                within = False
            keep = len(rest) - min(len(rest), len(delimiter) - 1)
            rest, tail = rest[:keep], rest[keep:]
            within = self._add_part(rest, within)
        self._add_part(tail, within)
        for number in range(len(self.paths)):
            self._flush(number)

    def _deal_whole(self, records: list[bytes], delimiter: bytes, within: bool) -> None:
        """Gives every hand its records; the first one ends the record that is `within` its hand already."""
        count, first = len(self.paths), self.total - within
        for offset in range(min(count, len(records))):
            mine = records[offset::count]
            mine.append(b"")
            self._add((first + offset) % count, delimiter.join(mine))
        self.total = first + len(records)

    def _add_part(self, part: bytes, within: bool) -> bool:
        """Adds to the record that has begun, or begins one; returns whether one has begun."""
        if part:
            self.total += not within
            self._add((self.total - 1) % len(self.paths), part)
        return within or bool(part)

    def _add(self, number: int, data: bytes) -> None:
        self._waiting[number] += data
        if len(self._waiting[number]) > self._limit:
            self._flush(number)

    def _flush(self, number: int) -> None:
        with self.paths[number].open("ab") as f:
            f.write(self._waiting[number])
        self.bytes[number] += len(self._waiting[number])
        self._waiting[number].clear()


def _publish(hands: _Hands, directory: Path, stem: str) -> list[Shard]:
    """Gives the shards their names, all or none; another split may have made some meanwhile."""
    count = len(hands.paths)
    placed: list[Path] = []
    shards = []
    try:
        _refuse_existing(directory, stem)
        for number, path in enumerate(hands.paths):
            target = directory / f"{stem}-{number:05d}"
            placed.append(target)
            path.rename(target)
            records = hands.total // count + (number < hands.total % count)
            shards.append(Shard(target, records, hands.bytes[number]))
    except BaseException:
        for target in placed:
            target.unlink(missing_ok=True)
        raise
    return shards


def _refuse_existing(directory: Path, stem: str) -> None:
    """Also shards beyond `count`: they would be taken for shards of this split."""
    name = re.compile(re.escape(stem) + r"-\d{5,}")
    existing = sorted(path.name for path in directory.iterdir() if name.fullmatch(path.name))
    if existing:
        raise RefusedError(
            f"{directory} has shards of that name: {existing[0]}" + (", ..." if len(existing) > 1 else ""),
            hint="remove them, or choose another directory with -o",
        )


def _open(source: Path) -> BinaryIO:
    try:
        if source.is_dir():
            raise ConfigError(f"{source} is a directory", hint="name one file of records")
        return gzip.open(source) if source.suffix == ".gz" else source.open("rb")  # type: ignore[return-value]
    except OSError as exc:
        raise ConfigError(f"cannot read {source}: {exc.strerror}") from exc


def _blocks(file: BinaryIO, source: Path) -> Iterator[bytes]:
    try:
        while block := file.read(READ_BYTES):
            yield block
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"cannot read {source}: {exc}", hint="is it whole?") from exc


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigError(
            f"cannot write shards into {directory}: {exc.strerror}",
            hint="nothing was left there; another directory: -o DIR",
        ) from exc
