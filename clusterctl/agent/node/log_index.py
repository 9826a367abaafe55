"""The time index of a log: (offset, time) pairs that tell when its bytes were written.

Offsets count from the first byte of the run, across rotation, and ascend, so that they are found by binary search.
Times do not have to: the clock may have been set back. Only a search from the beginning finds the first entry that is
recent enough. It reads 16 bytes for each 50 ms in which the process printed, which takes milliseconds.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

INDEX_ENTRY = struct.Struct("<Qd")
ENTRIES_AT_ONCE = 4096
#: The times of many entries.
_TIMES = struct.Struct("<" + "8xd" * ENTRIES_AT_ONCE)


class Times:
    """The times of a part of a log."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[float] = []

    def add(self, offset: int, t: float) -> None:
        self._offsets.append(offset)
        self._times.append(t)

    def at(self, offset: int) -> float:
        """Return the time at which the byte at `offset` was written; 0 if it is not known."""
        i = bisect.bisect_right(self._offsets, offset) - 1
        return self._times[i] if i >= 0 else 0.0


class LogIndex:
    """Reads an index, which may not exist yet, while it grows. Nothing is kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def times(self, start: int, end: int) -> Times:
        """Return the times of the bytes from `start` to `end`.

        The bytes must have been read before: a byte's entry is written first.
        """
        times = Times()
        try:
            f = self._path.open("rb")
        except FileNotFoundError:
            return times
        with f:
            f.seek(max(0, _count_until(f, start) - 1) * INDEX_ENTRY.size)
            for offset, t in _entries(f):
                if offset >= end:
                    break
                times.add(offset, t)
        return times

    def count_until(self, offset: int) -> int:
        """Return the number of entries for bytes up to `offset`."""
        with self._path.open("rb") as f:
            return _count_until(f, offset)

    def first_since(self, t: float) -> int | None:
        """Return the offset of the first entry that is not older than `t`; None if all are older.

        All bytes before that offset are older. Bytes after it may be older too, if the clock was set back.
        """
        try:
            f = self._path.open("rb")
        except FileNotFoundError:
            return None
        with f:
            while len(data := f.read(_TIMES.size)) == _TIMES.size and not max(_TIMES.unpack(data)) >= t:
                pass
            whole = len(data) - len(data) % INDEX_ENTRY.size
            return next((offset for offset, then in INDEX_ENTRY.iter_unpack(data[:whole]) if then >= t), None)


def _count_until(f: BinaryIO, offset: int) -> int:
    low, high = 0, os.fstat(f.fileno()).st_size // INDEX_ENTRY.size
    while low < high:
        middle = (low + high) // 2
        entry = os.pread(f.fileno(), INDEX_ENTRY.size, middle * INDEX_ENTRY.size)
        if len(entry) == INDEX_ENTRY.size and INDEX_ENTRY.unpack(entry)[0] <= offset:
            low = middle + 1
        else:
            high = middle
    return low


def _entries(f: BinaryIO) -> Iterator[tuple[int, float]]:
    while data := f.read(INDEX_ENTRY.size * 64):
        yield from INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % INDEX_ENTRY.size])
