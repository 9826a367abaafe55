"""The mathematics, checked against the same formula in float64 with numerical derivatives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

WORDS, SAMPLES, CAPACITY = 40, 7, 16
Doubles = npt.NDArray[np.float64]
Parameters = list[Doubles]  # vectors, hidden.w, hidden.b, output.w, output.b


def oracle(parameters: Parameters, targets: npt.NDArray[np.int64]) -> float:
    """Return the mean of -log softmax(tanh(x W + b) V + c)[target], computed sample by sample."""
    vectors, hidden_w, hidden_b, output_w, output_b = parameters
    losses = []
    for sample, target in zip(vectors, targets, strict=True):
        scores = np.tanh(np.concatenate(sample) @ hidden_w + hidden_b) @ output_w + output_b
        losses.append(np.logaddexp.reduce(scores) - scores[target])
    return float(np.mean(losses))


def slope(parameters: Parameters, targets: npt.NDArray[np.int64], which: int, at: tuple[int, ...]) -> float:
    """Return the central difference of the oracle with respect to one element of one parameter."""
    step, losses = 1e-5, []
    for sign in (+1, -1):
        moved = [array.copy() for array in parameters]
        moved[which][at] += sign * step
        losses.append(oracle(moved, targets))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.fixture
def point(programs: SimpleNamespace) -> tuple[Parameters, npt.NDArray[np.int64]]:
    rng, model = np.random.default_rng(5), programs.model
    shapes = [
        (SAMPLES, model.CONTEXT, model.EMBEDDING),
        (model.CONTEXT * model.EMBEDDING, model.HIDDEN),
        (model.HIDDEN,),
        (model.HIDDEN, WORDS),
        (WORDS,),
    ]
    parameters = [rng.normal(0, 0.3, shape).astype(np.float32).astype(np.float64) for shape in shapes]
    return parameters, rng.integers(0, WORDS, SAMPLES)


def gradients(programs: SimpleNamespace, parameters: Parameters, targets: Any) -> tuple[float, list[Any]]:
    vectors, *weights = (array.astype(np.float32) for array in parameters)
    model = programs.model.NgramModel(CAPACITY, WORDS)
    loss, dense, sparse = model.gradients(vectors, targets, programs.model.Weights(*weights))
    return loss, [sparse, *dense]


@pytest.mark.parametrize("which", range(5), ids=["vectors", "hidden.w", "hidden.b", "output.w", "output.b"])
def test_gradients_agree_with_finite_differences(
    programs: SimpleNamespace, point: tuple[Parameters, Any], which: int
) -> None:
    _, computed = gradients(programs, *point)
    shape = point[0][which].shape
    assert computed[which].shape == shape
    assert computed[which].dtype == np.float32
    rng = np.random.default_rng(which)
    for _ in range(60):
        at = tuple(int(rng.integers(size)) for size in shape)
        assert computed[which][at] == pytest.approx(slope(*point, which, at), rel=1e-3, abs=2e-6)


def test_the_loss_matches_the_formula(programs: SimpleNamespace, point: tuple[Parameters, Any]) -> None:
    loss, _ = gradients(programs, *point)
    assert loss == pytest.approx(oracle(*point), rel=1e-5)


def test_a_second_batch_is_not_affected_by_the_first(programs: SimpleNamespace, point: tuple[Parameters, Any]) -> None:
    parameters, targets = point
    vectors, *weights = (array.astype(np.float32) for array in parameters)
    weights = programs.model.Weights(*weights)
    model = programs.model.NgramModel(CAPACITY, WORDS)
    more = np.concatenate([vectors, vectors])[:, ::-1]
    model.gradients(np.ascontiguousarray(more), np.concatenate([targets, targets]), weights)
    loss, dense, sparse = model.gradients(vectors, targets, weights)
    fresh_loss, fresh = gradients(programs, parameters, targets)
    assert loss == fresh_loss
    for again, first in zip([sparse, *dense], fresh, strict=True):
        np.testing.assert_array_equal(again, first)


def test_huge_scores_give_a_finite_loss_and_finite_gradients(
    programs: SimpleNamespace, point: tuple[Parameters, Any]
) -> None:
    parameters, targets = point
    loss, computed = gradients(programs, [array * 1e4 for array in parameters], targets)
    assert np.isfinite(loss)
    assert all(np.isfinite(array).all() for array in computed)
