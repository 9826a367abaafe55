"""The mathematics, against the same formula written down in float64 and differentiated numerically."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

FIELDS, SAMPLES = 3, 7
NAMES = ["vectors", "hidden.w", "hidden.b", "output.w", "output.b"]
Doubles = npt.NDArray[np.float64]
Parameters = list[Doubles]  # as NAMES


def oracle(parameters: Parameters, labels: Doubles) -> float:
    """The mean of -log p(label), sample by sample: a logistic regression beside a network of one hidden layer."""
    vectors, hidden_w, hidden_b, output_w, output_b = parameters
    losses = []
    for sample, label in zip(vectors, labels, strict=True):
        wide = sum(vector[0] for vector in sample)
        deep = np.concatenate([vector[1:] for vector in sample]) @ hidden_w + hidden_b
        p = 1 / (1 + np.exp(-(wide + sum(u * max(0.0, h) for u, h in zip(output_w, deep, strict=True)) + output_b[0])))
        losses.append(-np.log(p if label else 1 - p))
    return float(np.mean(losses))


def slope(parameters: Parameters, labels: Doubles, which: int, at: tuple[int, ...]) -> float:
    """The central difference of the oracle by one element of one parameter."""
    step, losses = 1e-6, []
    for sign in (+1, -1):
        moved = [array.copy() for array in parameters]
        moved[which][at] += sign * step
        losses.append(oracle(moved, labels))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.fixture
def point(programs: SimpleNamespace) -> tuple[Parameters, Doubles]:
    rng, model = np.random.default_rng(5), programs.model
    shapes = [(SAMPLES, FIELDS, model.WIDTH), *model.shapes(FIELDS)]
    parameters = [rng.normal(0, 0.4, shape).astype(np.float32).astype(np.float64) for shape in shapes]
    return parameters, np.array([0, 1, 0, 0, 1, 1, 0], np.float64)


def gradients(programs: SimpleNamespace, parameters: Parameters, labels: Doubles) -> tuple[float, list[Any]]:
    vectors, *weights = (array.astype(np.float32) for array in parameters)
    loss, dense, d_vectors = programs.model.gradients(
        vectors, labels.astype(np.float32), programs.model.Weights(*weights)
    )
    return loss, [d_vectors, *dense]


@pytest.mark.parametrize("which", range(5), ids=NAMES)
def test_gradients_agree_with_finite_differences(
    programs: SimpleNamespace, point: tuple[Parameters, Doubles], which: int
) -> None:
    _, found = gradients(programs, *point)
    shape = point[0][which].shape
    assert found[which].shape == shape
    assert found[which].dtype == np.float32
    rng = np.random.default_rng(which)
    for _ in range(40):
        at = tuple(int(rng.integers(size)) for size in shape)
        assert found[which][at] == pytest.approx(slope(*point, which, at), rel=1e-3, abs=2e-6)


def test_the_loss_is_that_of_the_formula(programs: SimpleNamespace, point: tuple[Parameters, Doubles]) -> None:
    loss, _ = gradients(programs, *point)
    assert loss == pytest.approx(oracle(*point), rel=1e-5)


def test_huge_scores_give_a_finite_loss_and_finite_gradients(
    programs: SimpleNamespace, point: tuple[Parameters, Doubles]
) -> None:
    parameters, labels = point
    with np.errstate(over="raise"):
        loss, found = gradients(programs, [array * 1e4 for array in parameters], labels)
    assert np.isfinite(loss)
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("different", [2, 5, 1000], ids=lambda n: f"{n} different scores")
def test_auc_is_the_share_of_pairs_in_order(programs: SimpleNamespace, different: int) -> None:
    rng = np.random.default_rng(different)
    z, labels = rng.integers(different, size=200) / 8, (rng.random(200) < 0.3).astype(np.float32)
    pairs = [np.sign(yes - no) / 2 + 0.5 for yes in z[labels == 1] for no in z[labels == 0]]
    assert programs.model.auc(z.astype(np.float32), labels) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_auc_of_one_kind_only_is_not_a_number(programs: SimpleNamespace) -> None:
    assert np.isnan(programs.model.auc(np.arange(3.0), np.ones(3)))
    assert np.isnan(programs.model.auc(np.arange(3.0), np.zeros(3)))
