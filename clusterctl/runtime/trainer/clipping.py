"""Clipping of a trainer's whole gradient, before it is pushed (Pascanu, Mikolov, Bengio 2013).

Sums of squares are taken in float64, chunk after chunk and array after array, so the norm has the same bits whenever
the arrays come in the same order. Numbers that are not finite stay as they are, for the push to name them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import UseError

_CHUNK_ELEMENTS = 32_768
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Clip:
    """Made by `clip_by_value` or `clip_by_norm`, which say what `apply` does."""

    kind: str
    limit: float

    def __post_init__(self) -> None:
        if self.kind not in ("value", "norm"):
            raise UseError(f"clipping by {self.kind!r} is not known", remedy="use clip_by_value or clip_by_norm")
        limit = self.limit
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not is_number or not 0 < limit <= _LARGEST or np.float32(limit) == 0:
            raise UseError(f"clip_by_{self.kind}({limit!r}): the limit must be a positive number")

    def apply(self, arrays: Sequence[Floats]) -> list[Floats]:
        """The clipped arrays, float32 of any shapes. Those that need no change are returned themselves; none is
        written to. Rows of an id that occurs twice must have been summed before."""
        if self.kind == "value":
            return [_clipped(array, np.float32(self.limit)) for array in arrays]
        norm = global_norm(arrays)
        if norm <= self.limit or not math.isfinite(norm):
            return list(arrays)
        scale = np.float32(self.limit / norm)
        return [np.multiply(array, scale, out=np.empty_like(array)) for array in arrays]


def clip_by_value(limit: float) -> Clip:
    """Each element is brought into [-limit, limit]."""
    return Clip("value", limit)


def clip_by_norm(limit: float) -> Clip:
    """All are scaled by limit / norm when the norm, the Euclidean one of all arrays together, is above `limit`."""
    return Clip("norm", limit)


def global_norm(arrays: Sequence[Floats]) -> float:
    """The Euclidean norm of all elements of all arrays together; 0.0 when there are none."""
    return math.sqrt(sum(_sum_of_squares(array) for array in arrays))


def _sum_of_squares(array: Floats) -> float:
    flat, total = array.reshape(-1), 0.0
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        wide = flat[start : start + _CHUNK_ELEMENTS].astype(np.float64)
        wide *= wide
        total += float(wide.sum())
    return total


def _clipped(array: Floats, limit: np.float32) -> Floats:
    if array.size == 0:
        return array
    low, high = array.min(), array.max()  # NaN when there is one
    if (-limit <= low and high <= limit) or not np.isfinite(high - low):
        return array
    return np.clip(array, -limit, limit, out=np.empty_like(array))
