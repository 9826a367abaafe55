"""Where the first blocks of a model's tables are: the pservers get about the same number of elements."""

from __future__ import annotations

import pytest

from clusterctl.runtime import SGD, zeros
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
