"""Sharding: which lane owns which piece of a table.

A dense table is flattened in C order and cut into blocks of `BLOCK_ELEMENTS` elements; a sparse table's ids fall
into `SLOTS` slots. Both depend on the table only and never change (the file format names them); only the map from
blocks and slots to pservers depends on the number of pservers, so any model loads onto any number of them.

A lane owns one contiguous run of a dense table's blocks, so that a trainer sends a gradient as a view, without
copying. Small tables start at a lane chosen by their name, so that they do not all go to the first, or at the next of
the lanes that are filled in turn with the tables of a model (`places_in_turn`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from clusterctl.common.run_spec import Ports
from clusterctl.runtime.arrays import Bits, Ids

BLOCK_ELEMENTS = 65_536
SLOTS = 1_024

#: The maximum length of a dense part on the wire. Runs are cut at its multiples from their start.
PART_ELEMENTS = 262_144

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def table_key(name: str) -> int:
    """Return the 64-bit number of table `name` on the wire and in the generators."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def mix64(values: Bits) -> Bits:
    """Apply the finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64 bits, elementwise; a new array."""
    out: Bits = values ^ (values >> _SHIFT_1)
    out *= _MIX_1
    out ^= out >> _SHIFT_2
    out *= _MIX_2
    out ^= out >> _SHIFT_3
    return out


class Layout(NamedTuple):
    """The lanes of a run: each pserver has `dense` lanes for dense tables, then `sparse` lanes for sparse tables.

    Lanes are numbered through all pservers. With `sparse` 0 the rows share the dense lanes. A table is partitioned over
    the lanes of its kind, which are its *places* 0, 1, ... in the order of the lanes.
    """

    pservers: int
    dense: int = 1
    sparse: int = 0

    @property
    def per_pserver(self) -> int:
        return self.dense + self.sparse

    @property
    def lanes(self) -> int:
        return self.pservers * self.per_pserver

    def places(self, kind: str) -> list[int]:
        """Return the lane of each place of tables of a kind, "dense" or "sparse"."""
        return [lane for lane in range(self.lanes) if self._serves(lane, kind)]

    def place(self, lane: int, kind: str) -> tuple[int, int] | None:
        """Return `(place, places)` of a lane for tables of a kind, None if it does not serve that kind."""
        places = self.places(kind)
        return (places.index(lane), len(places)) if lane in places else None

    def place_of(self, lane: int, kind: str) -> tuple[int, int]:
        """Return `place`, or (0, 1) for a lane that does not serve that kind."""
        return self.place(lane, kind) or (0, 1)

    def _serves(self, lane: int, kind: str) -> bool:
        is_dense = lane % self.per_pserver < self.dense
        return is_dense if kind == "dense" or not self.sparse else not is_dense


def layout_of(ports: Ports, pservers: int) -> Layout:
    """Return the layout that spec.json sets for this number of pservers."""
    return Layout(pservers, ports.ports_num, ports.ports_num_for_sparse)


def block_count(elements: int) -> int:
    return -(-elements // BLOCK_ELEMENTS)


def places_in_turn(sizes: Iterable[int]) -> Iterator[int]:
    """Yield the place of the first block of each table of a model, given the tables' elements.

    Each block of the model's numbers in this order has the place after that of the block before, and a table has that
    of its middle. So the places get about the same number of elements, whatever their number is.
    """
    before = 0
    for size in sizes:
        yield (before + size // 2) // BLOCK_ELEMENTS
        before += size


def owned_elements(elements: int, first_place: int, place: int, places: int) -> tuple[int, int]:
    """Return `(start, stop)` of the flattened table's elements at `place`; empty if start == stop."""
    blocks = block_count(elements)
    at = (place - first_place) % places
    first, last = at * blocks // places, (at + 1) * blocks // places
    return min(first * BLOCK_ELEMENTS, elements), min(last * BLOCK_ELEMENTS, elements)


def slots_of(ids: Ids, rows: int | None) -> Ids:
    """Return the slot of each id: by hash in an unbounded table, by remainder in one bounded by `rows`."""
    if rows is None:
        hashed: Bits = mix64(ids.view(np.uint64)) & np.uint64(SLOTS - 1)
        return hashed.view(np.int64)
    remainder: Ids = ids & np.int64(SLOTS - 1)
    return remainder


def owners_of(ids: Ids, rows: int | None, places: int) -> Ids:
    """Return the place that owns each id: slot modulo the number of places."""
    owner_of_slot = np.arange(SLOTS, dtype=np.int64) % np.int64(places)
    owners: Ids = owner_of_slot.take(slots_of(ids, rows))
    return owners
