"""Clipping of a trainer's whole gradient before it is pushed (Pascanu, Mikolov, Bengio 2013).

Sums of squares are float64, chunk by chunk and array by array, so the norm has the same bits whenever the arrays come
in the same order. Numbers that are not finite are left unchanged, so that the push can report them.
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
    """A way of clipping, made by `clip_by_value` or `clip_by_norm`."""

    kind: str
    limit: float

    def __post_init__(self) -> None:
        if self.kind not in ("value", "norm"):
            raise UseError(f"clipping by {self.kind!r} is unknown", remedy="use clip_by_value or clip_by_norm")
        limit = self.limit
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not is_number or not 0 < limit <= _LARGEST or np.float32(limit) == 0:
            raise UseError(f"clip_by_{self.kind}({limit!r}): the limit must be a positive number")

    def apply(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Return the clipped arrays, float32 of any shape. No array is written to; those within the limit are returned
        as they are. Rows of an id that occurs twice must have been summed before."""
        if self.kind == "value":
            return [_clipped(array, np.float32(self.limit)) for array in arrays]
        norm = global_norm(arrays)
        if norm <= self.limit or not math.isfinite(norm):
            return list(arrays)
        scale = np.float32(self.limit / norm)
        return [np.multiply(array, scale, out=np.empty_like(array)) for array in arrays]


def clip_by_value(limit: float) -> Clip:
    """Clip each element to [-limit, limit]."""
    return Clip("value", limit)


def clip_by_norm(limit: float) -> Clip:
    """Scale the whole gradient by limit / norm if its Euclidean norm, over all arrays together, is above `limit`."""
    return Clip("norm", limit)


def global_norm(arrays: Sequence[Floats]) -> float:
    """Return the Euclidean norm of all elements of all arrays together; 0.0 without any."""
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
    low, high = array.min(), array.max()  # NaN if any element is
    if (-limit <= low and high <= limit) or not np.isfinite(high - low):
        return array
    return np.clip(array, -limit, limit, out=np.empty_like(array))


def checked_clip(clip: Clip | None) -> Clip | None:
    if clip is not None and not isinstance(clip, Clip):
        raise UseError(f"clip={clip!r} is not a way of clipping", remedy="pass for example clip_by_norm(5.0)")
    return clip
