"""Float32 numbers in 8 or 4 bits each, with a scale for every 256 elements: the format of tables with `wire`.

Q(x) is `scale * q` for each block of 256 elements, counted from the table's beginning: `scale = max|x| / top` and `q =
x / scale`, rounded half to even, where top is 127 ("int8") or 7 ("int4"). Every operation is one of float32. Runs and
parts of tables begin at multiples of 256, so the bits do not depend on how a table is divided.

A block is its scale (4 bytes, little-endian), then its codes: q as int8, or two numbers q + 8 of 4 bits in each byte,
the first in the low bits. The last block of a table ends with its last element.

A scale below the smallest normal float32 counts as 0. A block with a number that is not finite has the scale NaN, and
becomes NaN as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.arrays import Floats

Bytes = npt.NDArray[np.uint8]

SCALE_ELEMENTS = 256
#: Longer arrays are worked on in cuts: the memory of large temporary ones would go back to the system each time.
_CUT_ELEMENTS = 32_768
_SMALLEST = np.finfo(np.float32).tiny
_NEVER, _NAN = np.float32(np.inf), np.float32(np.nan)


def cuts(count: int) -> Iterator[slice]:
    """Yield the cuts of `count` elements in which they are to be packed."""
    for a in range(0, count, _CUT_ELEMENTS):
        yield slice(a, min(a + _CUT_ELEMENTS, count))


class Quantizer:
    """Q with `bits` bits for a number, 8 or 4. Thread-safe."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._top = np.float32(2 ** (bits - 1) - 1)
        self._block = np.dtype([("scale", "<f4"), ("codes", np.uint8, (SCALE_ELEMENTS * bits // 8,))])

    def size(self, count: int) -> int:
        """Return the bytes that `count` numbers take."""
        return 4 * -(-count // SCALE_ELEMENTS) + -(-count * self._bits // 8)

    def pack(self, numbers: Floats) -> tuple[Bytes, Floats]:
        """Return Q(numbers) as bytes, and as numbers: new arrays. `numbers` (n,) begin at the start of a block."""
        rows = _padded(numbers, SCALE_ELEMENTS).reshape(-1, SCALE_ELEMENTS)
        with np.errstate(all="ignore"):
            out = np.abs(rows)
            scales = out.max(axis=1) / self._top
            is_finite = np.isfinite(scales)
            scales[scales < _SMALLEST] = 0
            np.divide(rows, np.where(scales > 0, scales, _NEVER)[:, None], out=out)
            np.rint(out, out=out)
            out += np.float32(0)  # codes have no -0.0
            if not is_finite.all():
                out[~is_finite], scales[~is_finite] = 0, _NAN
            blocks = np.empty(len(rows), self._block)
            blocks["scale"], blocks["codes"] = scales, self._codes(out)
            out *= scales[:, None]
        packed: Bytes = blocks.view(np.uint8)[: self.size(len(numbers))]
        return packed, out.reshape(-1)[: len(numbers)]

    def unpack(self, packed: Bytes) -> Floats:
        """Return the numbers in `packed`, a new array. Numbers beyond those that were packed fill the last block."""
        blocks = _padded(packed, self._block.itemsize).view(self._block)
        out = np.empty((len(blocks), SCALE_ELEMENTS), np.float32)
        with np.errstate(all="ignore"):
            for a in range(0, len(blocks), _CUT_ELEMENTS // SCALE_ELEMENTS):
                own = slice(a, a + _CUT_ELEMENTS // SCALE_ELEMENTS)
                np.multiply(self._steps(blocks["codes"][own]), blocks["scale"][own, None], out=out[own])
        return out.reshape(-1)

    def _codes(self, steps: Floats) -> Bytes:
        if self._bits == 8:
            return steps.astype(np.int8).view(np.uint8)
        pairs = (steps + np.float32(8)).astype(np.uint8).view("<u2")
        codes: Bytes = (pairs | pairs >> 4).astype(np.uint8)
        return codes

    def _steps(self, codes: Bytes) -> Floats:
        if self._bits == 8:
            return codes.astype(np.int8).astype(np.float32)
        pairs = codes.astype("<u2")
        pairs |= pairs << 4
        pairs &= 0x0F0F
        steps: Floats = np.subtract(pairs.view(np.uint8), np.float32(8), dtype=np.float32)
        return steps


#: By the name in the spec of a table and in conf.py.
QUANTIZERS = {"int8": Quantizer(8), "int4": Quantizer(4)}


def _padded(array: npt.NDArray[np.generic], length: int) -> npt.NDArray[np.generic]:
    """Return an array with zeros after it, up to a multiple of `length` elements; itself if it needs none."""
    missing = -len(array) % length
    return np.concatenate((array, np.zeros(missing, array.dtype))) if missing else array
