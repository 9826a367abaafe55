"""Clipping of a whole gradient: compared with float64, and the arrays that it must leave alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime import clip_by_norm, clip_by_value
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.clipping import Clip, global_norm


def gradient(scale: float = 1.0) -> list[Any]:
    """Return arrays of different shapes: one longer than a chunk, one empty, and one with a single number."""
    rng = np.random.default_rng(5)
    shapes: list[tuple[int, ...]] = [(300, 500), (7,), (0, 4), (), (3, 5, 2)]
    return [np.asarray(rng.normal(scale=scale, size=shape), np.float32) for shape in shapes]


def exact_norm(arrays: list[Any]) -> float:
    return math.sqrt(math.fsum(float(x) ** 2 for array in arrays for x in array.ravel().tolist()))


def test_the_norm_covers_all_arrays_together() -> None:
    arrays = gradient(3.0)
    assert global_norm(arrays) == pytest.approx(exact_norm(arrays), rel=1e-14)
    assert global_norm([]) == 0.0


def test_the_norm_neither_overflows_nor_loses_small_numbers_among_many() -> None:
    assert global_norm([np.full(10, 3e38, np.float32)]) == pytest.approx(np.float64(np.float32(3e38)) * math.sqrt(10))
    assert global_norm([np.full(10**6, 1e-30, np.float32)]) == pytest.approx(1e-27, rel=1e-6)


def test_a_norm_above_the_limit_is_scaled_to_it_in_the_same_direction() -> None:
    arrays = gradient()
    clipped = clip_by_norm(5.0).apply(arrays)
    factor = 5.0 / exact_norm(arrays)
    assert factor < 0.1
    for before, after in zip(arrays, clipped, strict=True):
        assert isinstance(after, np.ndarray)
        assert after.dtype == np.float32
        assert after.shape == before.shape
        np.testing.assert_allclose(after, before.astype(np.float64) * factor, rtol=2e-7)
    assert exact_norm(clipped) == pytest.approx(5.0, rel=1e-6)


def test_a_gradient_within_the_limit_is_returned_itself() -> None:
    arrays = gradient()
    for clip in (clip_by_norm(exact_norm(arrays) * 1.001), clip_by_value(100.0)):
        assert all(after is before for before, after in zip(arrays, clip.apply(arrays), strict=True))
        assert clip.apply([]) == []


def test_values_are_clipped_one_by_one_and_untouched_arrays_are_returned_themselves() -> None:
    arrays = [np.array([-3, -0.5, 0, 0.25, 9], np.float32), np.array([[0.5], [-0.5]], np.float32)]
    first, second = clip_by_value(0.5).apply(arrays)
    np.testing.assert_array_equal(first, np.array([-0.5, -0.5, 0, 0.25, 0.5], np.float32))
    assert first.dtype == np.float32
    assert second is arrays[1]
    [single] = clip_by_value(0.5).apply([np.array(9, np.float32)])
    assert isinstance(single, np.ndarray)
    assert single == 0.5


@pytest.mark.parametrize("clip", [clip_by_value(0.1), clip_by_norm(0.1)], ids=repr)
def test_arguments_are_not_modified(clip: Clip) -> None:
    arrays = gradient()
    for array in arrays:
        array.flags.writeable = False
    copies = [array.copy() for array in arrays]
    assert any(after is not before for before, after in zip(arrays, clip.apply(arrays), strict=True))
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [clip_by_value(0.1), clip_by_norm(0.1)], ids=repr)
def test_numbers_that_are_not_finite_are_kept_so_that_they_are_detected(clip: Clip, bad: float) -> None:
    arrays = [np.array([1, bad, 2], np.float32)]
    with np.errstate(all="raise"):
        [after] = clip.apply(arrays)
    assert not np.isfinite(after).all()


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=40), st.floats(1e-3, 1e3), st.integers(0, 40))
@settings(max_examples=40)
def test_nothing_exceeds_the_limit_and_cutting_an_array_does_not_change_the_result(
    numbers: list[float], limit: float, cut: int
) -> None:
    values = np.array(numbers, np.float32)
    parts = [values[:cut], values[cut:]]
    for clip in (clip_by_norm(limit), clip_by_value(limit)):
        [at_once] = clip.apply([values])
        np.testing.assert_allclose(np.concatenate(clip.apply(parts)), at_once, rtol=1e-6)
        norm = exact_norm([at_once])
        assert (norm if clip.kind == "norm" else np.abs(at_once).max(initial=0)) <= limit * (1 + 1e-6)


@pytest.mark.parametrize("limit", [0, -1.0, math.nan, math.inf, "5", None, True, 1e39, 1e-60])
def test_a_limit_is_a_positive_number(limit: Any) -> None:
    for make in (clip_by_norm, clip_by_value):
        with pytest.raises(UseError, match="the limit must be a positive number"):
            make(limit)
    with pytest.raises(UseError, match="use clip_by_value or clip_by_norm"):
        Clip("sign", 1.0)
