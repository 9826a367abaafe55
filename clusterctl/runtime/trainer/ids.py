"""The trainer's arithmetic on ids: checking, deduplicating, partitioning by lane."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from clusterctl.runtime.arrays import Floats, Ids
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import owners_of

_GOLDEN = 0x9E3779B97F4A7C15
_LEAST_BITS = 10
_LEAST_RADIX = 2_048
#: Bytes of gradients that fit in a core's L2 cache; a block of fewer rows would cost more calls than it saves.
_BLOCK_BYTES = 2**19
_LEAST_BLOCK = 1_024
#: The smallest number that rounds to infinity in float16.
_HALF_INFINITY = np.float32(65_520)


def checked_ids(name: str, ids: Any) -> Ids:
    """Return `ids` as contiguous int64 of the same shape. Raises UseError unless they are integers below 2**63."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise UseError(f"ids for table {name!r} have dtype {array.dtype}", remedy="pass integers, such as int64")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise UseError(f"ids for table {name!r} go up to {array.max()}", remedy="ids are int64, below 2**63")
    return np.ascontiguousarray(array, np.int64)


def check_range(name: str, ids: Ids, rows: int | None) -> None:
    """Raise UseError if ids are outside the range of a table that is bounded by `rows`."""
    if rows is not None and ids.size and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise UseError(
            f"ids for table {name!r} go from {ids.min()} to {ids.max()}, it has rows={rows}",
            remedy=f"pass ids in 0..{rows - 1}, or make the table with rows=None",
        )


def checked_floats(what: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """Return `values` as contiguous float32 of exactly `shape`. Any float dtype is converted; others raise UseError."""
    array = np.asarray(values)
    if array.dtype.kind != "f" and array.size:
        raise UseError(f"{what} has dtype {array.dtype}", remedy="pass float32")
    if array.shape != shape:
        raise UseError(f"{what} has shape {array.shape}, expected {shape}")
    return np.ascontiguousarray(array, np.float32)


class Groups(NamedTuple):
    """Distinct ids, ascending, and `inverse`: for each of the given ids its position in `distinct`, int64."""

    distinct: Ids
    inverse: Ids

    def sum(self, values: Floats) -> Floats:
        """Return the sum of each distinct id's rows of `values`, (len(inverse), dim), added in order of occurrence.

        All additions are float32, from +0.0. `np.add.at` adds in the order of its indices; pairs of columns go through
        it as complex numbers, whose two parts are summed separately.
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
        """Add block by block of rows, so that all columns of a block are read while it is in the cache."""
        rows = max(_LEAST_BLOCK, _BLOCK_BYTES // max(1, values.itemsize * values.shape[1]))
        for a in range(0, len(values), rows):
            inverse = self.inverse[a : a + rows]
            for sums, column in zip(into.T, values[a : a + rows].T):
                np.add.at(sums, inverse, column)


def group(ids: Ids) -> Groups:
    """Group equal ids by hashing: every id writes its position into a cell, and the last writer leads the group.

    Ids that lose their cell to another id retry with another hash. Cells are not cleared in between, since a cell is
    only read after it was written. Only the distinct ids are sorted.
    """
    count = len(ids)
    bits = max(_LEAST_BITS, (2 * count).bit_length())
    cells, positions = np.empty(1 << bits, np.int64), np.arange(count, dtype=np.int64)
    multipliers = _multipliers()
    cell = _hashed(ids, next(multipliers), bits)
    cells[cell] = positions
    leader = cells.take(cell)
    todo = np.flatnonzero(ids.take(leader) != ids)
    while todo.size:
        rest = ids.take(todo)
        cell = _hashed(rest, next(multipliers), bits)
        cells[cell] = todo
        leader[todo] = winners = cells.take(cell)
        todo = todo[ids.take(winners) != rest]
    return _ranked(ids, leader, np.flatnonzero(leader == positions))


def _hashed(ids: Ids, multiplier: np.uint64, bits: int) -> Ids:
    hashed: Ids = ((ids.view(np.uint64) * multiplier) >> np.uint64(64 - bits)).view(np.int64)
    return hashed


def _multipliers() -> Iterator[np.uint64]:
    """Odd numbers for multiplicative hashing (Knuth 6.4), one per round."""
    return (np.uint64(round_ * _GOLDEN % 2**64 | 1) for round_ in itertools.count(1))


def _ranked(ids: Ids, leader: Ids, leads: Ids) -> Groups:
    some = ids.take(leads)
    order = _ascending(some)
    rank = np.empty(len(ids), np.int64)
    rank[leads.take(order)] = np.arange(len(leads), dtype=np.int64)
    return Groups(some.take(order), rank.take(leader))


def _ascending(ids: Ids) -> Ids:
    """Return the order that sorts distinct ids; many are sorted by radix (Knuth 5.2.5), 16 bits at a time."""
    order: Ids
    if len(ids) < _LEAST_RADIX:
        order = np.argsort(ids)
        return order
    order = np.arange(len(ids), dtype=np.int64)
    above = (ids - ids.min()).view(np.uint64)  # correct for any two ids, as int64 wraps
    for shift in range(0, int(above.max()).bit_length(), 16):
        digit = (above >> np.uint64(shift)).astype(np.uint16)
        order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order


def sum_by_id(ids: Ids, values: Floats) -> tuple[Ids, Floats]:
    """Return distinct ids, ascending, and the float32 sum of each id's rows of `values`, in order of occurrence."""
    groups = group(ids)
    return groups.distinct, groups.sum(values)


class Shares(NamedTuple):
    """Ascending distinct ids, and for each lane the positions of the ids it owns, ascending too."""

    ids: Ids
    positions: list[Ids]


def share_out(ids: Ids, rows: int | None, lanes: int) -> Shares:
    """Partition ids, ascending and distinct, by the lane that owns them."""
    if lanes == 1:
        return Shares(ids, [np.arange(len(ids), dtype=np.int64)])
    owners = owners_of(ids, rows, lanes).astype(np.uint16)  # numpy sorts 16 bits by radix; there are SLOTS owners
    order = np.argsort(owners, kind="stable")
    cuts = np.cumsum(np.bincount(owners, minlength=lanes))[:-1]
    return Shares(ids, np.split(order, cuts))


def fits_half(values: Floats) -> bool:
    """Return True if all values are finite in float16."""
    return values.size == 0 or bool(values.max() < _HALF_INFINITY and values.min() > -_HALF_INFINITY)
