"""The trainer's arithmetic on ids: checking, deduplicating, sharing out among pservers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.placement import Ids, owners_of

Floats = npt.NDArray[np.float32]

_FEW = 32


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
class Shares:
    """Ascending distinct ids, and for each pserver the positions of those that it holds, ascending too."""

    ids: Ids
    positions: list[Ids]


def share_out(ids: Ids, rows: int | None, pservers: int) -> Shares:
    """`ids` must be ascending and distinct."""
    if pservers == 1:
        return Shares(ids, [np.arange(len(ids), dtype=np.int64)])
    owners = owners_of(ids, rows, pservers)
    order = np.argsort(owners, kind="stable")
    cuts = np.searchsorted(owners[order], np.arange(1, pservers))
    return Shares(ids, np.split(order, cuts))


def sum_by_id(ids: Ids, values: Floats) -> tuple[Ids, Floats]:
    """Distinct ids, ascending, and the sum of each one's rows of `values`, added in order of occurrence in float32."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(ids)), bool), ordered[1:] != ordered[:-1])))
    counts = np.diff(np.append(starts, len(ids)))
    sums = values.take(order[starts], axis=0)
    nth = 1
    many = np.flatnonzero(counts > nth)
    while many.size > _FEW:  # the n-th occurrence of every id at once
        sums[many] += values[order[starts[many] + nth]]
        nth += 1
        many = many[counts[many] > nth]
    for at in many.tolist():  # few ids that occur often: each one's rest in one go (accumulate keeps the order)
        rest = values[order[starts[at] + nth : starts[at] + counts[at]]]
        sums[at] = np.add.accumulate(np.concatenate((sums[at : at + 1], rest)), axis=0)[-1]
    return ordered[starts], sums


def is_finite(values: Floats) -> bool:
    """Whether all values are finite; the sum tells in one cheap sweep unless it overflows."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())
