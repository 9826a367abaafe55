"""Log files of a run's processes, and the index for reading them in time order.

`log/train.log` holds a process's output, byte for byte. `log/.train.idx` holds (offset, time) pairs, at most
one per 50 ms; offsets count from the first byte of the run, across rotation. A full file is renamed to `train.log.1`,
the next one to `train.log.2`: lower is older, and nothing is deleted. A line that is longer than LONGEST_LINE is read
in pieces of that length.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple

from clusterctl.agent.node.log_index import INDEX_ENTRY, LogIndex, Times
from clusterctl.common.safe_json import loads

INDEX_EVERY_S = 0.05
ROTATE_BYTES = 256 << 20
READ_BYTES = 256 << 10
LONGEST_LINE = 64 << 10
LONGEST_SEARCH = 1 << 20  # for the start of a line, backwards
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
        self._drop_entries_of_lost_data(directory / f".{stem}.idx")

    def _drop_entries_of_lost_data(self, index: Path) -> None:
        """Keep offsets ascending if a power cut lost data whose entries it kept."""
        self._index.truncate(LogIndex(index).count_until(self._offset) * INDEX_ENTRY.size)

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


class LoggedLine(NamedTuple):
    """One line of a log: the time of its first byte, its bytes without the newline, and the offset after it."""

    t: float
    text: bytes
    end: int


class LogReader:
    """Reads one process's log from `offset` on, across rotation, while it grows. `offset` moves with the lines read.

    `heartbeat` is called periodically while it reads. Only lines that contain `words` matter: it may skip others.
    """

    def __init__(
        self,
        directory: Path,
        stem: str,
        offset: int = 0,
        *,
        words: bytes = b"",
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._stem = stem
        self._index = LogIndex(directory / f".{stem}.idx")
        self._heartbeat = heartbeat
        self._words = words
        self.offset = offset
        self._rest = b""
        self._found: list[LoggedLine] = []  # by seek_tail, the last one first
        self._found_until = 0

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

    def end(self, *, final: bool = True) -> int:
        """Return the offset after the last byte, or without `final`, after the last complete line or piece of one."""
        files = self.files()
        try:
            end = files[-1][0] + files[-1][1].stat().st_size if files else 0
        except FileNotFoundError:
            return self.end(final=final)
        if final:
            return end
        start = self._line_start(end)
        return start + (end - start) // LONGEST_LINE * LONGEST_LINE

    def seek_time(self, t: float, end: int | None = None) -> None:
        """Skip lines that are older than `t`, and none that is not. `end` must have been asked before."""
        end = self.end() if end is None else end  # before the index is read, which is written before the data
        first = self._index.first_since(t)
        self.offset = max(self.offset, self._line_start(end if first is None else min(first, end)))

    def seek_tail(
        self, lines: int, wanted: Callable[[LoggedLine], object] = lambda line: True, end: int | None = None
    ) -> None:
        """Skip all but the last `lines` wanted lines between here and `end`, reading backwards."""
        end = self.end() if end is None else end
        found = list(itertools.islice((one for one in self._backwards(end) if wanted(one[1])), lines))
        self.offset = found[-1][0] if found else max(self.offset, end)
        self._found, self._found_until = [line for _, line in found], end

    def _backwards(self, end: int) -> Iterator[tuple[int, LoggedLine]]:
        """Yield the lines between here and `end`, the last one first, each with the end of the line before.

        They are the lines that a reader from the beginning yields, except for lines longer than LONGEST_SEARCH, of
        which the pieces may begin elsewhere.
        """
        first, at = self.offset, end
        while at > first:
            start = max(first, self._line_start(max(first, at - READ_BYTES)))
            part = list(LogReader(self._directory, self._stem, start, words=self._words).lines(final=True, until=at))
            starts = [start, *(line.end for line in part[:-1])]
            yield from zip(reversed(starts), reversed(part))
            at = start
            self._heartbeat()

    def _line_start(self, offset: int) -> int:
        """Return the start of the line that contains the byte before `offset`, or `offset` if that byte ends a line."""
        span = min(4096, LONGEST_SEARCH)
        while True:
            start = max(0, offset - span)
            end_of_line = self._read_between(start, offset).rfind(b"\n")
            if end_of_line >= 0:
                return start + end_of_line + 1
            if start == 0 or span >= LONGEST_SEARCH:
                return start
            span *= 4

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

    def lines(self, *, final: bool, until: int | None = None) -> Iterator[LoggedLine]:
        """Yield the complete lines from here to the current end, or to the offset `until`.

        With `final` also yield a last line without a newline.
        """
        yield from self._found_lines()
        while True:
            at = self.offset + len(self._rest)
            count = READ_BYTES if until is None else max(0, min(READ_BYTES, until - at))
            data = self._read_at(at, count) if count else b""
            if not data:
                break
            self._heartbeat()
            data = self._rest + data
            if self._words in data:
                yield from self._split(data, self._index.times(self.offset, self.offset + len(data)))
            else:
                self._skip(data)
        if final and self._rest:
            text, self._rest = self._rest, b""
            yield self._line(text, len(text), self._index.times(self.offset, self.offset + 1))

    def _found_lines(self) -> Iterator[LoggedLine]:
        while self._found:
            line = self._found.pop()
            self.offset = line.end if self._found else self._found_until
            yield line

    def _split(self, data: bytes, times: Times) -> Iterator[LoggedLine]:
        start = 0
        while True:
            end = data.find(b"\n", start, start + LONGEST_LINE)
            if end < 0:
                if len(data) - start < LONGEST_LINE:
                    break
                end = start + LONGEST_LINE - 1
            text = data[start : end + 1]
            yield self._line(text.rstrip(b"\n"), len(text), times)
            start = end + 1
        self._rest = data[start:]

    def _skip(self, data: bytes) -> None:
        """Skip the lines that `_split` would yield: much faster."""
        end = data.rfind(b"\n") + 1
        end += (len(data) - end) // LONGEST_LINE * LONGEST_LINE
        self.offset += end
        self._rest = data[end:]

    def _line(self, text: bytes, length: int, times: Times) -> LoggedLine:
        t = times.at(self.offset)
        self.offset += length
        return LoggedLine(t, text, self.offset)


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
    """Return the event of a line; None if the line is torn or nested too deeply."""
    try:
        event = loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
