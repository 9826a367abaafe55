"""Initial values from a counter-based generator, so that they do not depend on the order of requests.

Element `i` of a dense table draws from `mix64(key + (i + 1) * GOLDEN)` and column `j` of row `id` from
`mix64(mix64(key ^ mix64(id)) + (j + 1) * GOLDEN)`, where `key` hashes (seed, table). That is splitmix64 read at
a counter (Steele, Lea, Flood 2014). Only integer operations and one or two float32 roundings follow, so the bits are
the same on every CPU; `normal` is a centred sum of twelve 16-bit uniforms (Irwin-Hall), without log or cos.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterctl.runtime.arrays import Bits, Floats, Ids
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import mix64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_RANK0 = "rank0"
_IRWIN_HALL_MEAN = 12 * 65_535 // 2
_IRWIN_HALL_STD = math.sqrt(65_536.0**2 - 1)


@dataclass(frozen=True)
class Initial:
    """Initial values, made by `uniform`, `normal`, `zeros` or `constant`; `a` and `b` are their parameters.

    Those of kind "rank0", made by `from_rank0`, are zeros until trainer 0 has sent them.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.a, self.b)
        if self.kind not in ("uniform", "normal", "constant", _RANK0):
            raise UseError(
                f"unknown initial values {self.kind!r}", remedy="use uniform, normal, zeros, constant or from_rank0"
            )
        if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
            raise UseError(f"{self.kind}{numbers} has parameters that are not finite numbers")

    @property
    def is_from_rank0(self) -> bool:
        return self.kind == _RANK0

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "a": float(self.a), "b": float(self.b)}

    def dense(self, key: int, start: int, count: int) -> Floats:
        """Return elements `start` to `start + count` of a flattened table, float32."""
        per = self._draws()
        counters = np.arange(start * per, (start + count) * per, dtype=np.uint64).reshape(count, per)
        base = np.full((1, 1), key, np.uint64)
        return self._shape(_bits(base, counters)).reshape(count)

    def rows(self, key: int, ids: Ids, dim: int) -> Floats:
        """Return the rows of `ids`, float32 of shape (len(ids), dim)."""
        per = self._draws()
        base = mix64(mix64(ids.view(np.uint64)) ^ np.uint64(key))
        counters = np.arange(dim * per, dtype=np.uint64).reshape(1, dim * per)
        bits = _bits(base[:, None], counters)
        return self._shape(bits.reshape(len(ids) * dim, per)).reshape(len(ids), dim)

    def _draws(self) -> int:
        return {"uniform": 1, "normal": 3}.get(self.kind, 0)

    def _shape(self, bits: Bits) -> Floats:
        if self.kind == "uniform":
            unit = (bits[:, 0] >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
            out: Floats = unit * np.float32((self.b - self.a) / 2)
            out += np.float32((self.a + self.b) / 2)
            return out
        if self.kind == "normal":
            lanes = np.ascontiguousarray(bits).view(np.uint16).reshape(len(bits), 12)
            centred = lanes.sum(axis=1, dtype=np.int64) - _IRWIN_HALL_MEAN
            out = centred.astype(np.float32) * np.float32(self.b / _IRWIN_HALL_STD)
            out += np.float32(self.a)
            return out
        return np.full(len(bits), self.a, np.float32)


class FromRank0(Initial):
    """The same with the `values` of this trainer, which may be None: those of trainer 0 are sent."""

    values: Any

    def __init__(self, values: Any) -> None:
        super().__init__(_RANK0)
        object.__setattr__(self, "values", values)


def _bits(base: Bits, counters: Bits) -> Bits:
    return mix64(base + (counters + np.uint64(1)) * _GOLDEN)


def stream_key(seed: int, table: int) -> int:
    """Return the generator's 64-bit key for a table (`sharding.table_key`) under a job's seed."""
    packed = struct.pack("<QQ", seed & (2**64 - 1), table)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def initial_from_json(data: dict[str, Any]) -> Initial:
    """Return the initial values in JSON of `Initial.to_json`. Raises UseError for anything else."""
    try:
        return Initial(str(data["kind"]), float(data["a"]), float(data["b"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise UseError(f"initial values {data!r} are malformed") from exc


def uniform(low: float, high: float = math.nan) -> Initial:
    """Uniform in [low, high); `uniform(scale)` is uniform in [-scale, scale)."""
    bounds: tuple[float, float] = (-low, low) if math.isnan(high) else (low, high)
    return Initial("uniform", *bounds)


def normal(std: float, mean: float = 0.0) -> Initial:
    """Approximately normal: a sum of twelve uniforms, with this standard deviation and mean, within 6 deviations."""
    return Initial("normal", mean, std)


def zeros() -> Initial:
    """Zero everywhere."""
    return Initial("constant", 0.0)


def constant(value: float) -> Initial:
    """The same number everywhere."""
    return Initial("constant", value)


def from_rank0(values: Any) -> Initial:
    """The values that trainer 0 passes: an array or tensor of floats, of the shape of a dense table, or (rows, dim).

    The other trainers may pass their own array or None. The table has no values until trainer 0 has sent its own, and
    the others wait for them. Values from a checkpoint or a saved model take their place.
    """
    return FromRank0(values)
