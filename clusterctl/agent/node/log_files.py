"""Log files of a run's processes, and the index for reading them in time order.

`log/train.log` holds a process's output, byte for byte. `log/.train.idx` holds (offset, time) pairs, at most
one per 50 ms; offsets count from the first byte of the run, across rotation. A full file is renamed to `train.log.1`,
the next one to `train.log.2`: lower is older, and nothing is deleted.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple

INDEX_ENTRY = struct.Struct("<Qd")
INDEX_EVERY_S = 0.05
ROTATE_BYTES = 256 << 20
READ_BYTES = 256 << 10
LONGEST_LINE = 64 << 10
EVENTS_BYTES = 1 << 20
LONGEST_EVENT = 8 << 20


class LogWriter:
    """Appends one process's output to that of earlier attempts. Not thread-safe.

    Raises OSError if the disk is full.
    """

    def __init__(
        self,
        directory: Path,
        stem: str,
        rotate_bytes: int = ROTATE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = directory / f"{stem}.log"
        self._clock = clock
        self._rotate_bytes = rotate_bytes
        self._file = self._open(self._path)
        self._index = self._open(directory / f".{stem}.idx")
        older = LogReader(directory, stem).files()
        self._offset = sum(path.stat().st_size for _, path in older)
        self._in_file = self._path.stat().st_size
        self._rotations = len(older) - 1
        self._indexed_at = 0.0

    @staticmethod
    def _open(path: Path) -> BinaryIO:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "ab", buffering=0)

    def write(self, data: bytes) -> None:
        now = self._clock()
        if now - self._indexed_at >= INDEX_EVERY_S or now < self._indexed_at:
            self._index.write(INDEX_ENTRY.pack(self._offset, now))
            self._indexed_at = now
        view = memoryview(data)
        while view:
            count = self._file.write(view) or 0
            self._offset += count
            self._in_file += count
            view = view[count:]
        if self._in_file >= self._rotate_bytes:
            self._rotate()

    def _rotate(self) -> None:
        self._rotations += 1
        self._path.rename(self._path.with_name(f"{self._path.name}.{self._rotations}"))
        self._file.close()
        self._file = self._open(self._path)
        self._in_file = 0

    def close(self) -> None:
        self._file.close()
        self._index.close()


class Line(NamedTuple):
    """One line of a log: the time of its first byte, its bytes without the newline, and the offset after it."""

    t: float
    text: bytes
    end: int


class LogReader:
    """Reads one process's log from `offset` on, across rotation, while it grows. `offset` moves with the lines read."""

    def __init__(self, directory: Path, stem: str, offset: int = 0) -> None:
        self._directory = directory
        self._stem = stem
        self.offset = offset
        self._rest = b""
        self._offsets: list[int] = []
        self._times: list[float] = []

    def files(self) -> list[tuple[int, Path]]:
        """Return (first offset, path) of every file of this log, oldest first."""
        while True:
            numbered = self._numbered()
            files, first = [], 0
            for path in (*numbered, self._live):
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue
                files.append((first, path))
                first += size
            if not self._has_rotated(numbered):
                return files

    @property
    def _live(self) -> Path:
        return self._directory / f"{self._stem}.log"

    def _numbered(self) -> list[Path]:
        """Return the full files, oldest first."""
        full = (path for path in self._directory.glob(f"{self._live.name}.*") if path.suffix[1:].isdigit())
        return sorted(full, key=lambda path: int(path.suffix[1:]))

    def _has_rotated(self, numbered: Sequence[Path]) -> bool:
        """Return True if the live file was rotated since `numbered` was listed: its name may mean another file."""
        last = int(numbered[-1].suffix[1:]) if numbered else 0
        return self._live.with_name(f"{self._live.name}.{last + 1}").exists()

    def _end(self) -> int:
        """Return the offset after the last byte."""
        files = self.files()
        with contextlib.suppress(FileNotFoundError):
            return files[-1][0] + files[-1][1].stat().st_size if files else 0
        return self._end()

    def seek_tail(self, lines: int) -> None:
        """Move to the start of the last `lines` lines."""
        end = self._end()
        span = 4096
        while True:
            start = max(0, end - span)
            data = self._read_between(start, end)
            if data.count(b"\n") > lines or start == 0 or span > (lines + 1) * LONGEST_LINE:
                break
            span *= 4
        body = data[:-1] if data.endswith(b"\n") else data
        cut = len(body)
        for _ in range(lines):
            cut = body.rfind(b"\n", 0, cut)
            if cut < 0:
                break
        self.offset = start + cut + 1 if lines else end

    def _read_between(self, start: int, end: int) -> bytes:
        parts, at = [], start
        while at < end:
            data = self._read_at(at, end - at)
            if not data:
                break
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def _read_at(self, offset: int, count: int) -> bytes:
        while True:
            numbered = self._numbered()
            data = self._read_from(self.files(), offset, count)
            if not self._has_rotated(numbered):
                return data

    @staticmethod
    def _read_from(files: Sequence[tuple[int, Path]], offset: int, count: int) -> bytes:
        for first, path in reversed(files):
            if offset >= first:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as f:
                    f.seek(offset - first)
                    return f.read(count)
                break
        return b""

    def _time_of(self, offset: int) -> float:
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self._times[at] if at >= 0 else 0.0

    def _read_index(self) -> None:
        try:
            with (self._directory / f".{self._stem}.idx").open("rb") as f:
                f.seek(len(self._offsets) * INDEX_ENTRY.size)
                data = f.read()
        except FileNotFoundError:
            return
        whole = len(data) - len(data) % INDEX_ENTRY.size
        for offset, t in INDEX_ENTRY.iter_unpack(data[:whole]):
            self._offsets.append(offset)
            self._times.append(t)

    def lines(self, *, final: bool) -> Iterator[Line]:
        """Yield the complete lines from here to the current end; with `final` also a last one without a newline."""
        while True:
            data = self._read_at(self.offset + len(self._rest), READ_BYTES)
            if not data:
                break
            self._read_index()  # an entry is written before its data
            yield from self._split(self._rest + data)
        if final and self._rest:
            text, self._rest = self._rest, b""
            yield self._line(text, len(text))

    def _split(self, data: bytes) -> Iterator[Line]:
        start = 0
        while True:
            end = data.find(b"\n", start)
            if end < 0:
                if len(data) - start < LONGEST_LINE:
                    break
                end = start + LONGEST_LINE - 1
            text = data[start : end + 1]
            yield self._line(text.rstrip(b"\n"), len(text))
            start = end + 1
        self._rest = data[start:]

    def _line(self, text: bytes, length: int) -> Line:
        t = self._time_of(self.offset)
        self.offset += length
        return Line(t, text, self.offset)


class EventReader:
    """Reads the complete lines of events.jsonl from an offset on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as f:
                f.seek(self.offset)
                data = f.read(EVENTS_BYTES)
                if b"\n" not in data:
                    data += f.read(LONGEST_EVENT)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [event for event in map(_parse, whole.splitlines()) if event]


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if the line is torn."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
