"""Arrays that grow in place: a table of gigabytes never needs its old and its new copy at the same time.

On Linux the memory is an anonymous private mapping that mremap(2) enlarges by moving page tables, not bytes, and pages
that were never written cost nothing. Where that is not available (macOS), or while a view of the old memory exists, the
array is copied.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.arrays import Array

T = TypeVar("T")
#: One or two milliseconds of copying.
SLICE_BYTES = 4 * 2**20


def copied(source: Array, copy: Array) -> Iterator[None]:
    """Copy an array, a slice with each step."""
    count = max(1, SLICE_BYTES * len(source) // max(1, source.nbytes))
    for start in range(0, len(source), count):
        copy[start : start + count] = source[start : start + count]
        yield


def completed(copying: tuple[T, Iterator[None]]) -> T:
    """Return a copy that is being made once it is complete."""
    copy, slices = copying
    for _ in slices:
        pass
    return copy


_LEAST_BYTES = 64 * 1024
#: A mapping of this size or more asks for huge pages, as numpy does for its own arrays.
_HUGE_BYTES = 4 * 2**20
#: Linux aligns a mapping of whole huge pages to huge pages, so that they stay whole when the mapping is moved.
_HUGE_PAGE = 2 * 2**20


class GrowableArray:
    """An array of shape (room,) or (room, width), zero where it was never written. Not thread-safe.

    `reserve` replaces `array`. A view of the old one stays valid and keeps its contents, but costs a copy.
    """

    def __init__(self, dtype: npt.DTypeLike, width: int | None = None) -> None:
        self._dtype = np.dtype(dtype)
        self._row = () if width is None else (width,)
        self._row_bytes = self._dtype.itemsize * (width or 1)
        self._map = _mapped(max(_LEAST_BYTES, self._row_bytes))
        self.array = self._view()

    def reserve(self, count: int) -> None:
        """Make room for `count` rows. Raises MemoryError."""
        if count <= len(self.array):
            return
        size = max(count * self._row_bytes, len(self._map) * 3 // 2)
        del self.array  # a mapping with views cannot be moved
        try:
            page = mmap.PAGESIZE if size < _HUGE_BYTES else _HUGE_PAGE
            self._map = _resized(self._map, -(-size // page) * page)
        finally:
            self.array = self._view()

    def _view(self) -> Array:
        room = len(self._map) // self._row_bytes
        flat = np.frombuffer(self._map, self._dtype, room * (self._row_bytes // self._dtype.itemsize))
        return flat.reshape(room, *self._row)


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as exc:
        raise MemoryError(f"no room for {size} bytes") from exc
    _ask_for_huge_pages(memory)
    return memory


def _resized(memory: mmap.mmap, size: int) -> mmap.mmap:
    try:
        memory.resize(size)
    except (BufferError, SystemError):  # it has views, or this system has no mremap
        fresh = _mapped(size)
        np.copyto(np.frombuffer(fresh, np.uint8, len(memory)), np.frombuffer(memory, np.uint8))
        return fresh
    except (OSError, OverflowError) as exc:
        raise MemoryError(f"no room for {size} bytes") from exc
    _ask_for_huge_pages(memory)
    return memory


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and len(memory) >= _HUGE_BYTES:
        try:
            memory.madvise(advice)
        except OSError:
            return  # a kernel without huge pages
