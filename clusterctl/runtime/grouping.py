"""The trainer's arithmetic on ids: checking, deduplicating, sharing out among pservers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.placement import Ids, owners_of

Floats = npt.NDArray[np.float32]

_GOLDEN = 0x9E3779B97F4A7C15
_LEAST_BITS = 10


def checked_ids(name: str, ids: Any, rows: int | None) -> Ids:
    """`ids` as int64 of the same shape; raises UseError when they are no whole numbers or out of the table's range."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise UseError(f"ids for table {name!r} have dtype {array.dtype}", remedy="give whole numbers, such as int64")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise UseError(f"ids for table {name!r} go up to {array.max()}", remedy="ids are int64, below 2**63")
    if rows is not None and (int(array.min()) < 0 or int(array.max()) >= rows):
        raise UseError(
            f"ids for table {name!r} go from {array.min()} to {array.max()}, it has rows={rows}",
            remedy=f"give ids in 0..{rows - 1}, or make the table with rows=None",
        )
    return np.ascontiguousarray(array, np.int64)


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
            pairs, into = values.view(np.complex64), sums.view(np.complex64)
        else:
            pairs = np.ascontiguousarray(values[:, :paired]).view(np.complex64)
            into = np.zeros((len(sums), paired // 2), np.complex64)
            np.add.at(sums[:, paired], self.inverse, values[:, paired])
        for column in range(paired // 2):
            np.add.at(into[:, column], self.inverse, pairs[:, column])
        sums[:, :paired] = into.view(np.float32)
        return sums


def group(ids: Ids) -> Groups:
    """The groups of equal ids, by hashing: every id writes its place into a cell, and the last writer stands for all.

    Ids that lose their cell to another id try again with another hash; nothing is cleared between, since a cell is
    only read after it was written. Only the distinct ids are sorted.
    """
    count = len(ids)
    bits = max(_LEAST_BITS, (2 * count).bit_length())
    cells = np.empty(1 << bits, np.int64)
    leader, todo, rest = np.empty(count, np.int64), np.arange(count, dtype=np.int64), ids
    for multiplier in _multipliers():
        cell = ((rest.view(np.uint64) * multiplier) >> np.uint64(64 - bits)).view(np.int64)
        cells[cell] = todo
        found = cells.take(cell)
        leader[todo] = found
        lost = np.flatnonzero(ids.take(found) != rest)
        if not lost.size:
            break
        todo, rest = todo.take(lost), rest.take(lost)
    return _ranked(ids, leader)


def _multipliers() -> Iterator[np.uint64]:
    """Odd numbers for multiplicative hashing (Knuth 6.4), another for every round."""
    return (np.uint64(round_ * _GOLDEN % 2**64 | 1) for round_ in itertools.count(1))


def _ranked(ids: Ids, leader: Ids) -> Groups:
    leads = np.flatnonzero(leader == np.arange(len(ids), dtype=np.int64))
    some = ids.take(leads)
    order = np.argsort(some)
    rank = np.empty(len(ids), np.int64)
    rank[leads.take(order)] = np.arange(len(leads), dtype=np.int64)
    return Groups(some.take(order), rank.take(leader))


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
