"""Split a data file into shards, record by record, streaming."""

from __future__ import annotations

import contextlib
import glob
import gzip
import itertools
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clusterctl.dispatch.header import TABLES, has_header, spans_lines
from clusterctl.dispatch.shards import ENDING
from clusterctl.errors import ConfigError, RefusedError, UsageError

READ_BYTES = 1 << 20
MOST_HEADER_BYTES = 1 << 20
SHOWN = 80  # bytes of a record, in a message
BUFFERED_BYTES = 32 << 20  # for all shards together
PACKED = (".bz2", ".xz", ".zst", ".zip", ".lz4", ".7z")


@dataclass(frozen=True)
class Shard:
    path: Path
    records: int
    bytes: int


class Split(NamedTuple):
    """The shards that were made, and what may be wrong with their records."""

    shards: list[Shard]
    warnings: list[str]


def split(
    source: Path, count: int, delimiter: bytes, output: Path | None = None, *, has_a_header: bool = False
) -> Split:
    """Split the records of `source` into `count` files in `output`, by default next to `source`.

    The shards of NAME.EXT are NAME-00000.EXT, ...; NAME.EXT.gz is decompressed into the same. Record i goes to shard
    i mod count, byte for byte and with its delimiter; a last record without one is left so. With `has_a_header`, the
    first record is no record: every shard begins with it. All shards appear at the end, or none. Raises RefusedError
    if shards of that name exist, UsageError for fewer records than shards, ConfigError if reading or writing fails.
    """
    if source.suffix in PACKED:
        raise ConfigError(
            f"{source} is compressed in a format that split cannot read", hint="decompress it first, or use .gz"
        )
    directory = output or source.parent
    name = ShardName.of(source)
    with _open(source) as file, _writing(directory):
        existed = directory.is_dir()
        directory.mkdir(parents=True, exist_ok=True)
        try:
            name.refuse_existing(directory)
            with tempfile.TemporaryDirectory(prefix=".split-", dir=directory) as temporary:
                blocks = _blocks(file, source)
                header, blocks = _take_header(blocks, delimiter, source) if has_a_header else (b"", blocks)
                sample = next(blocks, b"")
                writer = _ShardWriter(Path(temporary), count)
                writer.write(itertools.chain((sample,), blocks), delimiter, header)
                if writer.total < count:
                    raise UsageError(
                        f"{source} has {writer.total} record(s), fewer than the {count} requested shards",
                        hint="use a smaller --count or a different --delimiter",
                    )
                shards = _publish(writer, directory, name)
                return Split(shards, _warnings(sample, delimiter, header, name.ending))
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

    def write(self, blocks: Iterator[bytes], delimiter: bytes, header: bytes) -> None:
        """Distribute the records in `blocks` over the shards, each of which begins with `header`."""
        for number, path in enumerate(self.paths):
            path.touch()
            self._add(number, header)
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


class ShardName(NamedTuple):
    """The names of the shards of a file: `stem`-00000`ending`."""

    stem: str
    ending: str

    @classmethod
    def of(cls, source: Path) -> ShardName:
        whole = Path(source.stem) if source.suffix == ".gz" else source
        return cls(whole.stem, whole.suffix) if ENDING.fullmatch(whole.suffix) else cls(whole.name, "")

    def path(self, directory: Path, number: int) -> Path:
        return directory / f"{self.stem}-{number:05d}{self.ending}"

    @property
    def pattern(self) -> str:
        """The pattern for SHARDS."""
        return f"{glob.escape(self.stem)}-*{glob.escape(self.ending)}"

    def refuse_existing(self, directory: Path) -> None:
        """Raise RefusedError if shards of that name exist. Any beyond `count` would pass for shards of this split.

        Those of the other spelling, STEM.EXT-00000, would be training data beside them.
        """
        stem, ending = re.escape(self.stem), re.escape(self.ending)
        spellings = re.compile(rf"{stem}(-\d+{ending}|{ending}-\d+)")
        existing = sorted(path.name for path in directory.iterdir() if spellings.fullmatch(path.name))
        if existing:
            raise RefusedError(
                f"{directory} already has shards of that name: {existing[0]}" + (", ..." if len(existing) > 1 else ""),
                hint="remove them, or choose another directory with -o DIR",
            )


def _take_header(blocks: Iterator[bytes], delimiter: bytes, source: Path) -> tuple[bytes, Iterator[bytes]]:
    """Return the first record, with its delimiter, and the blocks after it."""
    begun = bytearray()
    while (end := begun.find(delimiter)) < 0 and len(begun) <= MOST_HEADER_BYTES and (block := next(blocks, b"")):
        begun += block
    end += len(delimiter)
    if end < len(delimiter) or end > MOST_HEADER_BYTES:
        raise UsageError(
            f"the first record of {source} is not a header: it has no end within {MOST_HEADER_BYTES >> 20} MiB",
            hint="leave out --header, or use a different --delimiter",
        )
    return bytes(begun[:end]), itertools.chain((bytes(begun[end:]),) if begun[end:] else (), blocks)


def _warnings(sample: bytes, delimiter: bytes, header: bytes, ending: str) -> list[str]:
    """Return what the first records give reason to doubt. `sample`: the first block of them."""
    *records, rest = sample.split(delimiter)
    warnings = []
    if not header and has_header([*records, rest] if rest else records, ending):
        shown = records[0][:SHOWN].decode(errors="replace").strip()
        warnings.append(
            f"the first record looks like a header, and is now a record of the first shard: {shown}\n"
            "  if it is one: remove the shards, and split with --header"
        )
    if ending in TABLES and spans_lines([header.removesuffix(delimiter), *records]):
        warnings.append(
            "a quoted field seems to go on in the next line: its record is torn between two shards\n"
            "  if so: remove the shards, and write the data with one line for each record"
        )
    return warnings


def _publish(writer: _ShardWriter, directory: Path, name: ShardName) -> list[Shard]:
    """Rename all shards to their final names, or no shard if another split has made some in the meantime."""
    count = len(writer.paths)
    placed: list[Path] = []
    shards = []
    try:
        name.refuse_existing(directory)
        for number, path in enumerate(writer.paths):
            target = name.path(directory, number)
            placed.append(target)
            path.rename(target)
            records = writer.total // count + (number < writer.total % count)
            shards.append(Shard(target, records, writer.bytes[number]))
    except BaseException:
        for target in placed:
            target.unlink(missing_ok=True)
        raise
    return shards


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
