"""Values that programs assign: equal ones on every trainer, or an error that names the table and the trainers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.arrays import may_be_equal, sketch
from clusterctl.runtime.errors import TableError
from unit.runtime.cluster import thread_cluster

COUNT = 70_000  # elements: both pservers have some
RNG = np.random.default_rng(5)


def train(ps: Any, assigns: Callable[[Any, Any], None], batches: Any = lambda rank: 4) -> Any:
    """Call `assigns(ps, table)` after each push."""
    w = ps.dense("w", COUNT, SGD(0.5))
    ps.assign(w, w.value)
    for _ in ps.steps(lambda pass_, rng: range(batches(ps.rank)), passes=2):
        ps.push({w: np.full(COUNT, -1.0, np.float32)}, samples=1)
        assigns(ps, w)
    return w.value.copy()


def limited(ps: Any, w: Any) -> None:
    ps.assign(w, np.minimum(w.value, 0.7))


def test_equal_values_are_those_of_the_next_step(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 3) as cluster:
        assert all((value == np.float32(0.7)).all() for value in cluster.train(lambda ps: train(ps, limited)))


def test_values_that_differ_by_rounding_are_equal_enough(tmp_path: Path) -> None:
    """Sums depend on the processor, and on the number of threads."""

    def assigns(ps: Any, w: Any) -> None:
        ps.assign(w, np.nextafter(w.value, np.float32(ps.rank)))

    with thread_cluster(tmp_path, 2, 2) as cluster:
        cluster.train(lambda ps: train(ps, assigns))


@pytest.mark.parametrize(
    ("assigns", "what"),
    [
        (
            lambda ps, w: ps.assign(w, np.full(COUNT, float(ps.rank))),
            "by trainer 0 before step 2, and another by trainer 1",
        ),
        (lambda ps, w: ps.rank == 0 and limited(ps, w), "by trainer 0 and not by trainer 1 before step 2"),
    ],
)
def test_unequal_values_are_refused(tmp_path: Path, assigns: Any, what: str) -> None:
    with (
        thread_cluster(tmp_path, 2, 2) as cluster,
        pytest.raises(TableError, match=re.escape(f"table 'w' was assigned a value {what}; call ps.assign with equal")),
    ):
        cluster.train(lambda ps: train(ps, assigns))


def test_a_trainer_with_fewer_batches_need_not_assign_what_others_do_after_their_last_one(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 2) as cluster:
        cluster.train(lambda ps: train(ps, limited, lambda rank: 4 - rank))


def test_what_trainer_0_cannot_assign_is_refused_as_its_batches_are_over(tmp_path: Path) -> None:
    with (
        thread_cluster(tmp_path, 2, 2) as cluster,
        pytest.raises(TableError, match="by trainer 1 and not by trainer 0"),
    ):
        cluster.train(lambda ps: train(ps, limited, lambda rank: 2 + 2 * rank))


@pytest.mark.parametrize("asks", [True, False])
def test_unequal_values_before_a_save_are_refused(tmp_path: Path, asks: bool) -> None:
    """Otherwise the model could have some values of each: also the one of the end of the run, if there is no call."""

    def program(ps: Any) -> None:
        w = ps.dense("w", COUNT, SGD(0.5))
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
            ps.push({w: w.value}, samples=1)
        ps.assign(w, np.full(COUNT, float(ps.rank)))
        if asks:
            ps.save("best")

    words = "'w' was assigned a value by trainer . before the save '.*', and another by trainer "
    with thread_cluster(tmp_path, 2, 2) as cluster, pytest.raises(TableError, match=words):
        cluster.train(program)


@pytest.mark.parametrize("count", [0, 1, 1000, 200_000])
def test_sketches_are_equal_up_to_rounding_and_show_changes(count: int) -> None:
    values = RNG.standard_normal(count).astype(np.float32)
    assert may_be_equal(sketch(values), sketch(np.nextafter(values, np.float32(9))))
    if count > 1:
        assert not may_be_equal(sketch(values), sketch(values[::-1].copy()))
        assert not may_be_equal(sketch(values), sketch(values * np.float32(1.001)))
        assert not may_be_equal(sketch(values), sketch(np.clip(values, -1, 1)))
        values[0] = np.nan
        assert may_be_equal(sketch(values), sketch(values))
        assert not may_be_equal(sketch(values), sketch(np.nan_to_num(values)))
