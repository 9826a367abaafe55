"""Three trainers that die again and again, anywhere: the bits are those of an undisturbed run."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import DEADLINE_S, ThreadCluster, thread_cluster
from unit.runtime.state.test_keeper import BY_STEP, Killed, assert_equal, program, session

TRAINERS, ATTEMPTS, PASSES = 3, 6, 4


def train(ps: Session, skip: int) -> Any:
    return program(ps, skip=skip, passes=PASSES)


def die_somewhere(cluster: ThreadCluster, rank: int, draw: random.Random, skip: int) -> Any:
    """Return the result of the attempt that does not die."""
    for attempt in range(1, ATTEMPTS):
        ps, point = session(cluster, rank, attempt), draw.choice(["answered", "taken", "end", "ended"])
        soon = ps.step + draw.randrange(5)
        try:
            with ps.die_at(point, soon if point in ("answered", "taken") else draw.randrange(PASSES)):
                return train(ps, skip)
        except Killed:
            pass
    with session(cluster, rank, ATTEMPTS) as ps:
        return train(ps, skip)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
def test_the_bits_are_those_of_an_undisturbed_run(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    skip, results = draw.choice([-1, 0, 1, 3]), [None] * TRAINERS
    draws = [random.Random(draw.random()) for _ in range(TRAINERS)]
    with thread_cluster(tmp_path / "whole", 1, TRAINERS) as cluster:
        expected = cluster.train(lambda ps: train(ps, skip))
    more = draw.choice([BY_STEP, {"ports_num": 2}])
    with thread_cluster(tmp_path / "killed", draw.choice([1, 2, 4]), TRAINERS, **more) as cluster:

        def run(rank: int) -> None:
            results[rank] = die_somewhere(cluster, rank, draws[rank], skip)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(TRAINERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
    assert_equal(results, expected)
