"""The trainer's arithmetic on ids, compared with numpy's sorting and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.runtime.table.sharding import SLOTS, owners_of
from clusterctl.runtime.trainer.ids import group, share_out, sum_by_id

EXTREMES = st.sampled_from([-(2**63), -1, 0, 1, 2**32, 2**63 - 1])


@given(st.lists(st.one_of(EXTREMES, st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)), max_size=60))
def test_groups_equal_those_of_sorting(ids: list[int]) -> None:
    array = np.array(ids, np.int64)
    groups = group(array)
    distinct, inverse = np.unique(array, return_inverse=True)
    assert groups.distinct.tolist() == distinct.tolist()
    assert groups.inverse.tolist() == inverse.tolist()


def test_groups_of_many_ids_in_one_cell_equal_those_of_sorting() -> None:
    inverse_of_golden = pow(0x9E3779B97F4A7C15, -1, 2**64)
    colliding = (np.arange(700, dtype=np.uint64) * np.uint64(inverse_of_golden)).view(np.int64)  # hashes 0, 1, 2, ...
    ids = np.random.default_rng(0).permutation(np.concatenate((colliding, colliding, np.arange(50))))
    groups = group(ids)
    distinct, inverse = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(groups.distinct, distinct)
    np.testing.assert_array_equal(groups.inverse, inverse)


@pytest.mark.parametrize("lowest", [-(2**63), -3, 0])
@pytest.mark.parametrize("span", [2**16 + 1, 2**40, 2**64 - 1])
def test_groups_of_thousands_of_distinct_ids_equal_those_of_sorting(lowest: int, span: int) -> None:
    """With this many ids the order is found digit by digit; the highest and the lowest id are included."""
    most = min(lowest + span, 2**63 - 1)
    drawn = np.random.default_rng(span % 1_000).integers(lowest, most, 9_000, endpoint=True)
    ids = np.concatenate((drawn, [most, lowest], drawn[:500]))
    groups = group(ids)
    distinct, inverse = np.unique(ids, return_inverse=True)
    assert len(distinct) > 2_048
    np.testing.assert_array_equal(groups.distinct, distinct)
    np.testing.assert_array_equal(groups.inverse, inverse)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_sums_of_zipf_ids_add_in_order_of_occurrence(dim: int) -> None:
    rng = np.random.default_rng(3)
    ids = rng.zipf(1.2, 4_000) % 500 - 250
    values = (rng.normal(size=(len(ids), dim)) * 10.0 ** rng.integers(-6, 7, (len(ids), 1))).astype(np.float32)
    expected: dict[int, Any] = {}
    for key, row in zip(ids.tolist(), values, strict=True):
        expected[key] = expected.get(key, np.zeros(dim, np.float32)) + row
    distinct, sums = sum_by_id(ids, values)
    assert distinct.tolist() == sorted(expected)
    assert sums.tobytes() == np.array([expected[key] for key in distinct.tolist()]).tobytes()
    backwards = sum_by_id(ids[::-1].copy(), values[::-1].copy())[1]
    assert backwards.tobytes() != sums.tobytes()  # so that the order affects the sums


def test_without_ids_there_are_no_sums() -> None:
    distinct, sums = sum_by_id(np.empty(0, np.int64), np.empty((0, 4), np.float32))
    assert (distinct.shape, sums.shape) == ((0,), (0, 4))


@pytest.mark.parametrize(("rows", "lanes"), [(None, 3), (10_000, 1), (10_000, SLOTS)])
def test_every_id_goes_to_its_owner_and_order_is_kept(rows: int | None, lanes: int) -> None:
    ids = np.unique(np.random.default_rng(1).integers(0, 10_000, 900))
    shares = share_out(ids, rows, lanes)
    assert len(shares.positions) == lanes
    for lane, positions in enumerate(shares.positions):
        assert (owners_of(ids[positions], rows, lanes) == lane).all()
        assert (np.diff(positions) > 0).all()
    assert sorted(np.concatenate(shares.positions).tolist()) == list(range(len(ids)))
