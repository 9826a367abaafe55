"""Where the elements of tables are, evenly divided, and their initial values, which do not depend on that."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clusterctl.runtime import SGD, normal, uniform, zeros
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, owned_elements, places_in_turn, table_key
from clusterctl.runtime.table.spec import TableSpec, spec_from_json

#: The elements of the tables of a transformer of five blocks, 128 wide, over bytes.
LAYER = [3 * 128 * 128, 384, 128 * 128, 128, 4 * 128 * 128, 512, 4 * 128 * 128, 128, 128, 128, 128, 128]
SIZES = [256 * 128, 128 * 128, *LAYER * 5, 128, 128, 256 * 128, 256]


def fullest(places: int, firsts: list[int]) -> float:
    """Return the elements of the fullest place relative to the mean."""
    held = [0] * places
    for size, first in zip(SIZES, firsts, strict=True):
        for place in range(places):
            start, stop = owned_elements(size, first, place, places)
            held[place] += stop - start
    assert sum(held) == sum(SIZES)
    return max(held) * places / sum(held)


@pytest.mark.parametrize("places", [1, 2, 3, 4, 8])
def test_the_tables_of_a_model_divide_evenly(places: int) -> None:
    assert fullest(places, [*places_in_turn(SIZES)]) < 1.12


def test_by_their_names_they_do_not() -> None:
    assert fullest(4, [table_key(f"table {number}") for number in range(len(SIZES))]) > 1.2


def test_a_large_table_is_at_all_places() -> None:
    [first] = places_in_turn([8 * BLOCK_ELEMENTS])
    runs = [owned_elements(8 * BLOCK_ELEMENTS, first, place, 4) for place in range(4)]
    assert {stop - start for start, stop in runs} == {2 * BLOCK_ELEMENTS}


def test_a_table_names_its_place_only_if_it_was_given_one() -> None:
    spec = TableSpec("w", "dense", (3, 4), SGD(0.1), zeros())
    assert "place" not in spec.to_json()
    assert spec.first_place == spec.key
    placed = TableSpec("w", "dense", (3, 4), SGD(0.1), zeros(), place=5)
    assert spec_from_json(placed.to_json()) == placed
    assert placed.first_place == 5
    with pytest.raises(UseError, match="place=-1"):
        TableSpec("w", "dense", (3, 4), SGD(0.1), zeros(), place=-1)


@pytest.mark.parametrize(("elements", "pservers"), [(5, 7), (BLOCK_ELEMENTS, 1), (10 * BLOCK_ELEMENTS + 3, 3)])
def test_every_element_lives_on_exactly_one_pserver(elements: int, pservers: int) -> None:
    runs = [owned_elements(elements, table_key("any"), p, pservers) for p in range(pservers)]
    covered = sorted(run for run in runs if run[0] < run[1])
    assert covered[0][0] == 0
    assert covered[-1][1] == elements
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))


def test_initial_values_do_not_depend_on_which_trainer_asks_first() -> None:
    key = 12345
    for init in (uniform(0.3), uniform(1.0, 2.0), normal(0.5, mean=1.0)):
        whole = init.dense(key, 0, 1000)
        np.testing.assert_array_equal(init.dense(key, 300, 50), whole[300:350])
        ids = np.array([5, -3, 10**12])
        np.testing.assert_array_equal(init.rows(key, ids, 4)[1:2], init.rows(key, ids[1:2], 4))


def test_initial_values_have_the_named_distribution() -> None:
    even = uniform(0.1).dense(1, 0, 200_000).astype(np.float64)
    assert even.min() >= -0.1
    assert even.max() < 0.1
    assert abs(even.mean()) < 1e-3
    assert abs(even.std() - 0.2 / 12**0.5) < 1e-3
    bell = normal(2.0, mean=1.0).rows(1, np.arange(50_000), 4).astype(np.float64)
    assert abs(bell.mean() - 1) < 0.02
    assert abs(bell.std() - 2) < 0.02
    assert 0.675 < (abs(bell - 1) < 2).mean() < 0.685


def test_the_generator_always_gives_the_same_numbers() -> None:
    """Saved models, resumed runs and other machines rely on exactly these bits."""
    values = uniform(1.0).dense(42, 0, 3).view(np.uint32).tolist()
    rows = normal(1.0).rows(42, np.array([-1, 7]), 1).view(np.uint32).ravel().tolist()
    assert (values, rows) == ([1056398536, 3207471162, 3202528868], [3215525120, 1021755392])
