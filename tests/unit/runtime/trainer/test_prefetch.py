"""Pulled rows: prefetched ones that the program gets or never uses, and distinct ids that it pushes again."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, zeros
from clusterctl.runtime.trainer.parameters import PendingRows
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import thread_cluster

IDS = np.array([4, 9, 2])


def test_rows_prefetched_before_a_break_are_not_used_in_the_next_loop(tmp_path: Path) -> None:
    """One trainer leaves the pass after 4 of 9 batches, and starts the next loop with the ids it had prefetched."""

    def program(ps: Session) -> Any:
        e = ps.embedding("e", 1, SGD(1.0), zeros())
        for loop in range(2):
            for batch in ps.steps(lambda pass_, rng: range(9), passes=1, prefetch=1, ids={e: lambda batch: IDS}):
                if (loop, batch) == (1, 0):
                    return e.pull(IDS)[:, 0]
                ps.push({e: (IDS, -np.ones((3, 1)))}, samples=1)
                if ps.rank == 0 and batch == 3:
                    break

        raise AssertionError

    with thread_cluster(tmp_path, 1, 2) as cluster:
        for rows in cluster.train(program):
            assert rows.tolist() == [9.0] * 3


@pytest.mark.parametrize(("mode", "ahead"), [("sync", 1), ("async", 3)])
def test_prefetched_rows_that_are_never_used_do_not_pile_up(tmp_path: Path, mode: str, ahead: int) -> None:
    """The batch function returns different ids than the program pulls."""

    def program(ps: Session) -> int:
        e = ps.embedding("e", 1, SGD(1.0))
        for n in ps.steps(lambda pass_, rng: range(40), passes=1, prefetch=ahead, ids={e: lambda n: [n, 1000]}):
            e.pull([n])
            ps.push({e: ([n], np.ones((1, 1)))}, samples=1)
            if n == 30:
                gc.collect()
                return sum(isinstance(obj, PendingRows) for obj in gc.get_objects())
        raise AssertionError

    with thread_cluster(tmp_path, 1, 1, mode=mode) as cluster:
        [alive] = cluster.train(program)
    assert alive <= 2 * ahead + 1


def test_in_async_rows_are_as_old_as_their_request(tmp_path: Path) -> None:
    """With one trainer whose pushes are settled before each pull, a batch's rows lack the pushes since it was read."""
    ahead = 2

    def program(ps: Session) -> list[float]:
        e = ps.embedding("e", 1, SGD(1.0), zeros(), rows=1)
        w = ps.dense("w", 1, SGD(1.0))
        seen = []
        for _ in ps.steps(lambda pass_, rng: range(8), passes=1, prefetch=ahead, ids={e: lambda batch: [0]}):
            seen.append(float(e.pull([0])[0, 0]))
            ps.push({e: ([0], -np.ones((1, 1))), w: np.ones(1)}, samples=1)
        return seen

    with thread_cluster(tmp_path, 1, 1, mode="async") as cluster:
        [seen] = cluster.train(program)
    assert seen[0] == 0
    for batch, value in enumerate(seen[1:], 1):  # requested after the push `ahead` batches before
        assert value == max(1, batch - ahead + 1), seen


@pytest.mark.parametrize("at", [0, 9_999])
def test_ids_that_were_changed_after_they_were_pulled_are_pushed_as_they_are_now(tmp_path: Path, at: int) -> None:
    def program(ps: Session) -> Any:
        e = ps.embedding("e", 1, SGD(1.0), zeros())
        ids = np.arange(10_000)
        for _ in ps.steps(lambda pass_, rng: range(1), passes=1):
            e.pull(ids)
            ids[at] = 20_000
            ps.push({e: (ids, -np.ones((10_000, 1)))}, samples=1)
            return e.pull([at, 20_000, 2])[:, 0]
        raise AssertionError

    with thread_cluster(tmp_path, 1, 1) as cluster:
        [rows] = cluster.train(program)
    assert rows.tolist() == [0.0, 1.0, 1.0]


def test_pulled_distinct_ids_are_pushed_as_they_are(tmp_path: Path) -> None:
    """A gradient of the very array from `pull_distinct` gives the values of one that is grouped again."""

    def program(ps: Any) -> Any:
        e = ps.embedding("e", 3, SGD(1.0))
        ids = np.array([[7, -2], [7, 5]])
        for number in ps.steps(lambda pass_, rng: range(2), passes=1):
            groups, rows = e.pull_distinct(ids)
            assert groups.distinct.tolist() == [-2, 5, 7]
            assert np.array_equal(rows[groups.inverse].reshape(2, 2, 3), e.pull(ids))
            ps.push({e: (groups.distinct if number else groups.distinct.copy(), rows / 2)}, samples=1)
            assert np.array_equal(e.pull(groups.distinct), rows - rows / 2)
        return None

    with thread_cluster(tmp_path, 2, 1) as cluster:
        cluster.train(program)
