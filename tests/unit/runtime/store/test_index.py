"""The index from ids to positions, compared with a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.store import index as index_module
from clusterctl.runtime.store.index import DirectIndex, HashIndex, Index, make_index
from clusterctl.runtime.table.sharding import SLOTS, mix64, owners_of


class Book:
    """An index and a dictionary; positions are drawn at random from the free ones."""

    def __init__(self, index: Index, room: int) -> None:
        self.index = index
        self.keys = np.zeros(room, np.int64)
        self.expected: dict[int, int] = {}
        self.free = np.random.default_rng(1).permutation(room).tolist()

    def add(self, ids: Any) -> None:
        positions = np.array([self.free.pop() for _ in range(len(ids))], np.int64)
        self.keys[positions] = ids
        self.index.add(ids, positions, self.keys)
        self.expected.update(zip(ids.tolist(), positions.tolist(), strict=True))

    def remove(self, ids: Any) -> None:
        positions = [self.expected.pop(i) for i in ids.tolist()]
        self.index.remove(ids, np.array(positions, np.int64))
        self.free += positions

    def check(self, ids: Any) -> None:
        assert self.index.find(ids, self.keys).tolist() == [self.expected.get(i, -1) for i in ids.tolist()]


def unmixed(hashed: Any) -> Any:
    """Return the ids with these hashes: `mix64`, undone step by step."""

    def unshift(x: Any, by: int) -> Any:
        out = x
        for _ in range(64 // by + 1):
            out = x ^ (out >> np.uint64(by))
        return out

    out = unshift(hashed, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    out = unshift(out, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    return unshift(out, 30).view(np.int64)


OPERATIONS = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 59), min_size=1)), max_size=30)


@pytest.mark.parametrize("kind", ["colliding", "extreme", "bounded"])
@settings(max_examples=60)
@given(operations=OPERATIONS)
def test_ids_are_added_and_removed_as_in_a_dictionary(kind: str, operations: Any) -> None:
    if kind == "bounded":
        lane_ids = np.arange(5 * SLOTS)[owners_of(np.arange(5 * SLOTS), 5 * SLOTS, 3) == 1]
        book, pool = Book(DirectIndex(5 * SLOTS, 1, 3), 60), lane_ids[:: len(lane_ids) // 60][:60]
    else:
        colliding = unmixed(np.arange(60, dtype=np.uint64) + np.uint64(2**64 - 30))  # all in one cell, the last one
        book = Book(HashIndex(), 60)
        pool = colliding if kind == "colliding" else np.r_[-(2**63) : -(2**63) + 30, 2**63 - 30 : 2**63 - 1, -1]
    for is_add, chosen in operations:
        ids = pool[sorted(chosen)]
        known = np.isin(ids, list(book.expected))
        if is_add:
            book.add(ids[~known])
        else:
            book.remove(ids[known])
        book.check(pool)


def test_unmixed_ids_have_the_given_hashes() -> None:
    hashes = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert mix64(unmixed(hashes).view(np.uint64)).tolist() == hashes.tolist()


def test_the_hash_index_grows_through_chunks_and_forgets_removed_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_CHUNK", 100)
    book = Book(HashIndex(), 3_000)
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(-(2**62), 2**62, 14_000))
    rng.shuffle(ids)
    for at in range(0, 12_500, 500):  # a window of 2,500 ids moves forward
        book.add(ids[at : at + 500])
        if at >= 2_500:
            book.remove(ids[at - 2_500 : at - 2_000])
        book.check(ids[max(0, at - 3_500) : at + 1_000])
    assert book.index.bytes <= 4 * 2_500 / 0.2  # 4 bytes a cell, of which at least a fifth is in use


def test_cells_are_direct_while_that_wastes_no_pages() -> None:
    assert isinstance(make_index(10_000_000, 0, 1), DirectIndex)
    assert isinstance(make_index(100_000_000, 2, 4), DirectIndex)
    assert isinstance(make_index(100_000_000, 0, 1), HashIndex)
    assert isinstance(make_index(None, 0, 1), HashIndex)
