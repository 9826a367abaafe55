"""Gradients of several batches merged into one, compared with plain float64 sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime.trainer.accumulation import Accumulator
from clusterctl.runtime.trainer.ids import sum_by_id


def batch(rng: np.random.Generator) -> dict[str, Any]:
    """A batch with, at random, a matrix and a single number, and rows of few ids with duplicates."""
    count = int(rng.integers(0, 9))
    gradients: dict[str, Any] = {
        "matrix": rng.normal(size=(4, 3)).astype(np.float32),
        "one": np.asarray(rng.normal(), np.float32),
        "rows": (rng.integers(-3, 3, count), rng.normal(size=(count, 2)).astype(np.float32)),
    }
    return {table: gradient for table, gradient in gradients.items() if rng.random() < 0.7}


def expected(batches: list[dict[str, Any]], samples: list[int]) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the float64 means of dense gradients, and of rows by id; absent is zero, without samples is nothing."""
    dense: dict[str, Any] = {}
    rows: dict[int, Any] = {}
    for gradients, n in zip(batches, samples, strict=True):
        for table, gradient in gradients.items() if n else ():
            if table != "rows":
                dense[table] = dense.get(table, 0) + n / sum(samples) * np.asarray(gradient, np.float64)
                continue
            for key, row in zip(gradient[0].tolist(), gradient[1].astype(np.float64), strict=True):
                rows[key] = rows.get(key, 0) + n / sum(samples) * row
    return dense, rows


@given(st.lists(st.sampled_from([0, 1, 3, 32, 1000]), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60)
def test_the_result_is_the_mean_weighted_by_samples(samples: list[int], seed: int, at_the_end: bool) -> None:
    rng, accumulator = np.random.default_rng(seed), Accumulator[str]()
    batches = [batch(rng) for _ in samples]
    for gradients, n in zip(batches[:-1], samples[:-1], strict=True):
        accumulator.add(gradients, n)
    assert accumulator.batches == len(samples) - 1
    if at_the_end:
        merged, total = accumulator.last(batches[-1], samples[-1])
    else:
        accumulator.add(batches[-1], samples[-1])
        merged, total = accumulator.take()
    dense, rows = expected(batches, samples)
    assert total == sum(samples)
    for table in ("matrix", "one"):
        assert (table in merged) == (table in dense)
        if table in merged:
            array: Any = merged[table]
            assert isinstance(array, np.ndarray)
            assert (array.dtype, array.shape) == (np.float32, dense[table].shape)
            np.testing.assert_allclose(array, dense[table], rtol=0, atol=2e-6)
    ids, sums = sum_by_id(*merged["rows"]) if "rows" in merged else ([], np.empty((0, 2), np.float32))
    assert list(ids) == sorted(rows)
    np.testing.assert_allclose(sums, np.array([rows[key] for key in ids]).reshape(-1, 2), rtol=0, atol=2e-6)
    assert sums.dtype == np.float32


def test_a_single_batch_with_samples_is_returned_unchanged() -> None:
    rng = np.random.default_rng(1)
    gradients = {"w": rng.normal(size=5).astype(np.float32), "e": (np.array([4, 4]), np.ones((2, 1), np.float32) / 3)}
    accumulator = Accumulator[str]()
    accumulator.add({"w": np.full(5, np.nan, np.float32)}, 0)
    merged, samples = accumulator.last(gradients, 7)
    assert samples == 7
    assert merged["w"] is gradients["w"]
    assert merged["e"] is gradients["e"]
    accumulator.add(gradients, 7)
    accumulator.add({}, 0)
    copied, _ = accumulator.take()
    np.testing.assert_array_equal(copied["w"], gradients["w"])
    np.testing.assert_array_equal(copied["e"][1], gradients["e"][1])


def test_arrays_can_be_reused_after_they_were_added() -> None:
    accumulator, gradient, ids, rows = Accumulator[str](), np.ones(3, np.float32), np.array([1]), np.ones((1, 1), "f4")
    for value in (1.0, 2.0, 6.0):
        gradient[:], rows[:], ids[:] = value, value, int(value)
        accumulator.add({"w": gradient, "e": (ids, rows)}, 10)
    gradient[:], rows[:], ids[:] = 99, 99, 99
    merged, _ = accumulator.take()
    np.testing.assert_array_equal(merged["w"], np.full(3, 3.0, np.float32))
    assert merged["e"][0].tolist() == [1, 2, 6]
    np.testing.assert_array_equal(merged["e"][1][:, 0], np.array([1, 2, 6], np.float32) * np.float32(1 / 3))


def test_dense_bits_equal_those_of_a_merge_of_trainers() -> None:
    rng = np.random.default_rng(2)
    grads, samples = rng.normal(size=(5, 1000)).astype(np.float32), [3, 64, 1, 0, 17]
    accumulator = Accumulator[str]()
    for gradient, n in zip(grads, samples, strict=True):
        accumulator.add({"w": gradient}, n)
    merged, total = accumulator.take()
    by_hand = np.zeros(1000, np.float32)
    for gradient, n in zip(grads, samples, strict=True):
        by_hand += gradient * np.float32(n)
    np.testing.assert_array_equal(merged["w"], by_hand / np.float32(85))
    assert total == 85


def test_it_starts_over_after_each_take() -> None:
    accumulator = Accumulator[str]()
    assert accumulator.take() == ({}, 0)
    for value in (1.0, 5.0):
        accumulator.add({"w": np.zeros(2, np.float32)}, 1)
        merged, samples = accumulator.last({"w": np.full(2, value, np.float32)}, 1)
        assert samples == 2
        np.testing.assert_array_equal(merged["w"], np.full(2, value / 2, np.float32))
        assert (accumulator.batches, accumulator.samples) == (0, 0)
    accumulator.add({"w": np.ones(2, np.float32)}, 0)
    assert accumulator.batches == 1
    assert accumulator.take() == ({}, 0)
