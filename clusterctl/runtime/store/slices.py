"""Copies of arrays that are made slice by slice, so that there is time for other work between two slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

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
