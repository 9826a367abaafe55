"""A lane's rows: growth, reading for a file, and concurrent reads. Retention is tested separately."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime.store.growable import GrowableArray
from clusterctl.runtime.store.sparse import SparseGrad, SparseReader, SparseTable
from clusterctl.runtime.table.initializers import uniform
from clusterctl.runtime.table.retention import Retention, older_than
from clusterctl.runtime.table.rules import Adagrad, Rule
from clusterctl.runtime.table.spec import TableSpec

ONE = np.float32(1)


def table_of(
    dim: int = 3,
    rule: Rule | None = None,
    rows: int | None = None,
    lane: int = 0,
    lanes: int = 1,
    retention: Retention | None = None,
) -> SparseTable:
    spec = TableSpec("e", "sparse", (dim,), rule or Adagrad(0.5), uniform(0.1), rows=rows, retention=retention)
    return SparseTable(spec, 7, lane, lanes)


def grad_of(table: SparseTable, ids: Any, seed: int = 0, weight: int = 1) -> SparseGrad:
    rows = np.random.default_rng(seed).normal(size=(len(ids), table.spec.dim))
    return SparseGrad(np.float32(weight), np.array(ids), rows.astype(np.float32))


def train(table: SparseTable, steps: int, count: int = 300) -> None:
    for step in range(steps):
        rng = np.random.default_rng(step)
        table.apply([grad_of(table, np.unique(rng.integers(0, 5_000, count)), step)], ONE, step)


@pytest.mark.parametrize("dim", [1, 3, 16, 20_000])
def test_rows_keep_their_values_while_the_table_grows(dim: int) -> None:
    table, held = table_of(dim), {}
    for step in range(6):
        ids = np.arange(step, 9_000 // dim + 12, 6) * 1_000_003 - 2**40
        table.apply([grad_of(table, ids, step)], ONE, step)
        held.update(zip(ids.tolist(), table.pull(ids, None), strict=True))
    ids = np.array(sorted(held))
    np.testing.assert_array_equal(table.pull(ids, None), np.array([held[i] for i in ids.tolist()]))
    assert sorted(table.ids.tolist()) == ids.tolist()


def test_the_previous_version_is_seen_until_the_next_step() -> None:
    table = table_of()
    ids = np.arange(40)
    initial = table.pull(ids, None)
    table.apply([grad_of(table, ids[::2])], ONE, 0)
    first = table.pull(ids, 1)
    table.apply([grad_of(table, ids[::3])], ONE, 1)
    np.testing.assert_array_equal(table.pull(ids, 1), first)
    assert not np.array_equal(initial, first)
    assert not np.array_equal(table.pull(ids, 2), first)


def test_values_missing_in_a_file_start_as_in_a_new_row() -> None:
    loaded, fresh = table_of(), table_of()
    ids = np.arange(10)
    loaded.restore(ids, {"rows": fresh.pull(ids, None)})
    loaded.restore(ids + 100, {"state/0": np.zeros((10, 3), np.float32)})
    all_ids = np.concatenate((ids, ids + 100))
    assert len(loaded) == 20
    for table in (loaded, fresh):
        table.apply([grad_of(table, all_ids)], ONE, 0)
    np.testing.assert_array_equal(loaded.pull(all_ids, None), fresh.pull(all_ids, None))


def contents(reader: SparseReader) -> dict[str, Any]:
    positions = reader.live()
    return {"ids": reader.ids_at(positions), **{c.name: reader.read(c.name, positions) for c in reader.columns()}}


def test_a_frozen_table_is_unchanged_while_another_thread_trains() -> None:
    table = table_of(retention=Retention(expire=older_than(2), sweep_every=1))  # so that places are reused
    train(table, 3)
    before, frozen = contents(table), table.frozen()
    trainer = threading.Thread(target=train, args=(table, 40, 900))
    trainer.start()
    meanwhile = contents(frozen)
    trainer.join()
    for seen in (meanwhile, contents(frozen)):
        assert seen.keys() == {"ids", "rows", "state/0", "seen"}
        for name, array in seen.items():
            np.testing.assert_array_equal(array, before[name])
    assert table.counters()["expired"] > len(frozen) == len(before["ids"])


def test_counters_count_ids() -> None:
    table = table_of()
    table.apply([grad_of(table, [1, 2, 3])], ONE, 0)
    table.pull(np.array([2, 3, 4, 5]), None)
    counters = table.counters()
    assert counters.pop("bytes") > 3 * (2 * 3 * 4 + 8)
    assert counters == {
        "rows": 3, "looked_up": 4, "hits": 2, "admitted": 3, "refused": 0, "expired": 0, "evicted": 0
    }  # fmt: skip


def test_memory_can_grow_while_a_view_exists_and_the_view_keeps_its_values() -> None:
    growing = GrowableArray(np.float32, 4)
    growing.array[:] = 1
    view, room = growing.array, len(growing.array)
    growing.reserve(room + 1)
    growing.array[0] = 2
    assert (view == 1).all()
    assert (growing.array[1:room] == 1).all()
    assert not growing.array[room:].any()


def test_large_arrays_start_on_a_huge_page_wherever_they_move() -> None:
    """Moving them therefore splits no huge page. Since 6.7, Linux aligns mappings of whole huge pages."""
    huge = 2**21
    with_pages = mmap.mmap(-1, 4 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if np.frombuffer(with_pages, np.uint8).ctypes.data % huge:
        pytest.skip("this system does not align mappings")
    growing = GrowableArray(np.float32, 16)
    for count in (90_000, 100_000, 200_001, 700_003):
        growing.reserve(count)
        assert growing.array.ctypes.data % huge == 0


def test_a_failed_allocation_is_a_memory_error_and_keeps_the_existing_values() -> None:
    growing = GrowableArray(np.int64)
    growing.array[:] = 5
    with pytest.raises(MemoryError):
        growing.reserve(2**57)
    assert (growing.array == 5).all()
