"""Dense tables, which are updated block by block: the bits of numpy over whole arrays, whatever the lengths are."""

from __future__ import annotations

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adam, Momentum, uniform
from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.store.dense import CHUNK_ELEMENTS, DenseTable, filled
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.sharding import PART_ELEMENTS
from clusterctl.runtime.table.spec import TableSpec

LENGTHS = (1, 7, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, 3 * CHUNK_ELEMENTS + 5, PART_ELEMENTS + 3)
RULES = (SGD(0.1, l1=0.01), Momentum(0.1), Adam(0.1, l2=0.1))
WEIGHTS = ((1,), (8,), (3,), (4, 4), (4, 2), (1, 5, 3))


def gradient(length: int, seed: int) -> Floats:
    values = np.random.default_rng(seed).standard_normal(length).astype(np.float32)
    values[:: max(1, length // 50)] = -0.0
    return values


def mean(grads: list[Floats], weights: tuple[int, ...]) -> Floats:
    """By definition: from +0.0, each weighted gradient added by ascending rank, divided by the sum of the weights."""
    total = np.zeros_like(grads[0])
    for weight, grad in zip(weights, grads, strict=True):
        total = total + np.float32(weight) * grad
    return total / np.float32(sum(weights))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_blocks_of_a_table_have_the_bits_of_whole_arrays(rule: Rule, in_place: bool) -> None:
    for number, length in enumerate(LENGTHS):
        table = DenseTable(TableSpec("w", "dense", (length,), rule, uniform(0.5)), 0, 1, seed=7)
        value, state = table.current.copy(), filled(rule, length)
        for step, weights in enumerate(WEIGHTS[number % 2 :: 2]):
            grads = [gradient(length, 10 * step + rank) for rank in range(len(weights))]
            for part in range(table.parts):
                start, stop = table.bounds(part)
                own = [(np.float32(w), grad[start:stop]) for w, grad in zip(weights, grads, strict=True)]
                table.apply(part, own, sum(weights), step + 1, rule, in_place)
            if not in_place:
                table.finish(step)
            after = np.empty_like(value)
            rule.update(value, state, mean(grads, weights), after, step + 1)
            value = after
            assert table.current.tobytes() == value.tobytes(), (length, weights)
            assert [a.tobytes() for a in table.state] == [a.tobytes() for a in state], (length, weights)
