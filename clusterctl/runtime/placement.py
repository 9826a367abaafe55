"""Where a piece of a table lives.

A dense table is flattened in C order and cut into blocks of `BLOCK_ELEMENTS` elements; a sparse table's ids fall
into `SLOTS` slots. Both are fixed for ever by the table alone (the file format names them); only the map from
blocks and slots to pservers knows how many pservers there are, so any model loads onto any number of them.

A pserver owns one contiguous run of a dense table's blocks, so that a gradient leaves the trainer as a view and
needs no gathering. Small tables start at a pserver chosen by their name, so that they do not all crowd on the first.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

BLOCK_ELEMENTS = 65_536
SLOTS = 1_024

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def table_key(name: str) -> int:
    """The 64-bit number that stands for table `name` on the wire and in the generators."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def mix64(values: Bits) -> Bits:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64 bits, elementwise; a new array."""
    out: Bits = values ^ (values >> _SHIFT_1)
    out *= _MIX_1
    out ^= out >> _SHIFT_2
    out *= _MIX_2
    out ^= out >> _SHIFT_3
    return out


def block_count(elements: int) -> int:
    return -(-elements // BLOCK_ELEMENTS)


def owned_elements(elements: int, key: int, pserver: int, pservers: int) -> tuple[int, int]:
    """`(start, stop)` of the flattened table's elements that live on `pserver`; empty when start == stop."""
    blocks = block_count(elements)
    place = (pserver - key) % pservers
    first, last = place * blocks // pservers, (place + 1) * blocks // pservers
    return min(first * BLOCK_ELEMENTS, elements), min(last * BLOCK_ELEMENTS, elements)


def slots_of(ids: Ids, rows: int | None) -> Ids:
    """The slot of each id: by hash in an unbounded table, by remainder in one whose `rows` are known."""
    if rows is None:
        hashed: Bits = mix64(ids.view(np.uint64)) & np.uint64(SLOTS - 1)
        return hashed.view(np.int64)
    remainder: Ids = ids & np.int64(SLOTS - 1)
    return remainder


def owners_of(ids: Ids, rows: int | None, pservers: int) -> Ids:
    """The pserver that holds each id: slot modulo the number of pservers."""
    owners: Ids = slots_of(ids, rows) % np.int64(pservers)
    return owners
