"""The trainer's arithmetic on ids: checking, deduplicating, sharing out among pservers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import owners_of

_GOLDEN = 0x9E3779B97F4A7C15
_LEAST_BITS = 10
_LEAST_RADIX = 2_048
#: As many bytes of gradients stay in a core's second cache; a block of few rows would cost more calls than it saves.
_BLOCK_BYTES = 2**19
_LEAST_BLOCK = 1_024
#: The least number that rounds to infinity as float16.
_HALF_INFINITY = np.float32(65_520)


def checked_ids(name: str, ids: Any) -> Ids:
    """`ids` as contiguous int64 of the same shape; raises UseError when they are no whole numbers below 2**63."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise UseError(f"ids for table {name!r} have dtype {array.dtype}", remedy="give whole numbers, such as int64")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise UseError(f"ids for table {name!r} go up to {array.max()}", remedy="ids are int64, below 2**63")
    return np.ascontiguousarray(array, np.int64)


def check_range(name: str, ids: Ids, rows: int | None) -> None:
    """Raises UseError when ids are out of the range of a table that is bounded by `rows`."""
    if rows is not None and ids.size and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise UseError(
            f"ids for table {name!r} go from {ids.min()} to {ids.max()}, it has rows={rows}",
            remedy=f"give ids in 0..{rows - 1}, or make the table with rows=None",
        )


def checked_floats(what: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """`values` as contiguous float32 of exactly `shape`; any float type is converted, everything else is a UseError."""
    array = np.asarray(values)
    if array.dtype.kind != "f" and array.size:
        raise UseError(f"{what} has dtype {array.dtype}", remedy="give float32")
    if array.shape != shape:
        raise UseError(f"{what} has shape {array.shape}, expected {shape}")
    return np.ascontiguousarray(array, np.float32)


@dataclass(frozen=True)
class Groups:
    """`distinct` ids, ascending, and for each of the ids given the place of its equal there: `inverse`, int64."""

    distinct: Ids
    inverse: Ids

    def sum(self, values: Floats) -> Floats:
        """The sum of each distinct id's rows of `values`, (len(inverse), dim), added in order of occurrence.

        All additions are in float32, from +0.0. `np.add.at` adds in the order of its indices; rows of columns side by
        side go through it as complex numbers, whose two parts are summed each for itself.
        """
        sums = np.zeros((len(self.distinct), values.shape[1]), np.float32)
        paired = values.shape[1] // 2 * 2
        if values.shape[1] == paired:
            self._add_columns(sums.view(np.complex64), values.view(np.complex64))
            return sums
        into = np.zeros((len(sums), paired // 2), np.complex64)
        self._add_columns(into, np.ascontiguousarray(values[:, :paired]).view(np.complex64))
        self._add_columns(sums[:, paired:], values[:, paired:])
        sums[:, :paired] = into.view(np.float32)
        return sums

    def _add_columns(self, into: Any, values: Any) -> None:
        """Block after block of rows, so that all columns of a block are read while it is in the cache."""
        rows = max(_LEAST_BLOCK, _BLOCK_BYTES // max(1, values.itemsize * values.shape[1]))
        for a in range(0, len(values), rows):
            inverse = self.inverse[a : a + rows]
            for sums, column in zip(into.T, values[a : a + rows].T):
                np.add.at(sums, inverse, column)


def group(ids: Ids) -> Groups:
    """The groups of equal ids, by hashing: every id writes its place into a cell, and the last writer stands for all.

    Ids that lose their cell to another id try again with another hash; nothing is cleared between, since a cell is
    only read after it was written. Only the distinct ids are sorted.
    """
    count = len(ids)
    bits = max(_LEAST_BITS, (2 * count).bit_length())
    cells, places = np.empty(1 << bits, np.int64), np.arange(count, dtype=np.int64)
    multipliers = _multipliers()
    cell = _hashed(ids, next(multipliers), bits)
    cells[cell] = places
    leader = cells.take(cell)
    todo = np.flatnonzero(ids.take(leader) != ids)
    while todo.size:
        rest = ids.take(todo)
        cell = _hashed(rest, next(multipliers), bits)
        cells[cell] = todo
        leader[todo] = found = cells.take(cell)
        todo = todo[ids.take(found) != rest]
    return _ranked(ids, leader, np.flatnonzero(leader == places))


def _hashed(ids: Ids, multiplier: np.uint64, bits: int) -> Ids:
    hashed: Ids = ((ids.view(np.uint64) * multiplier) >> np.uint64(64 - bits)).view(np.int64)
    return hashed


def _multipliers() -> Iterator[np.uint64]:
    """Odd numbers for multiplicative hashing (Knuth 6.4), another for every round."""
    return (np.uint64(round_ * _GOLDEN % 2**64 | 1) for round_ in itertools.count(1))


def _ranked(ids: Ids, leader: Ids, leads: Ids) -> Groups:
    some = ids.take(leads)
    order = _ascending(some)
    rank = np.empty(len(ids), np.int64)
    rank[leads.take(order)] = np.arange(len(leads), dtype=np.int64)
    return Groups(some.take(order), rank.take(leader))


def _ascending(ids: Ids) -> Ids:
    """The order that sorts distinct ids: of many by radix (Knuth 5.2.5), 16 bits at a time, which numpy does fast."""
    order: Ids
    if len(ids) < _LEAST_RADIX:
        order = np.argsort(ids)
        return order
    order = np.arange(len(ids), dtype=np.int64)
    above = (ids - ids.min()).view(np.uint64)  # right for any two ids, by wrapping
    for shift in range(0, int(above.max()).bit_length(), 16):
        digit = (above >> np.uint64(shift)).astype(np.uint16)
        order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order


def sum_by_id(ids: Ids, values: Floats) -> tuple[Ids, Floats]:
    """Distinct ids, ascending, and the sum of each one's rows of `values`, added in order of occurrence in float32."""
    groups = group(ids)
    return groups.distinct, groups.sum(values)


@dataclass(frozen=True)
class Shares:
    """Ascending distinct ids, and for each lane the positions of those that it holds, ascending too."""

    ids: Ids
    positions: list[Ids]


def share_out(ids: Ids, rows: int | None, lanes: int) -> Shares:
    """`ids` must be ascending and distinct."""
    if lanes == 1:
        return Shares(ids, [np.arange(len(ids), dtype=np.int64)])
    owners = owners_of(ids, rows, lanes).astype(np.uint16)  # numpy sorts 16 bits by radix; there are SLOTS owners
    order = np.argsort(owners, kind="stable")
    cuts = np.cumsum(np.bincount(owners, minlength=lanes))[:-1]
    return Shares(ids, np.split(order, cuts))


def is_finite(values: Floats) -> bool:
    """Whether all values are finite; the sum of squares tells in one cheap sweep unless it overflows."""
    flat = values.reshape(-1)
    return math.isfinite(np.dot(flat, flat)) or bool(np.isfinite(flat).all())


def fits_half(values: Floats) -> bool:
    """Whether all values are finite as float16, too."""
    return values.size == 0 or bool(values.max() < _HALF_INFINITY and values.min() > -_HALF_INFINITY)
