"""A trainer that is killed anywhere, or a run that is resumed, ends with the bits of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cluster import thread_cluster
from tests.torch_api.stateful import BATCHES, PASSES, TRAINERS, Job, Kill, assert_same, processes

pytestmark = pytest.mark.engines

#: Steps of a pass: trainer 0 has one batch more than trainer 1.
STEPS = -(-BATCHES // TRAINERS)
POINTS = [
    ("forward", 1),
    ("forward", 7),
    ("answered", 1),
    ("answered", 7),
    ("taken", 7),
    ("write", 1),
    ("write", 5),
    ("on_pass", 0),
    ("on_pass", PASSES - 1),
    ("answered", STEPS),
    ("taken", STEPS),
    ("end", 0),
    ("ended", 1),
    ("answered", STEPS * PASSES),
]
CASES = [(Kill(rank, *at), (1, 2, 4)[(number + rank) % 3]) for number, at in enumerate(POINTS) for rank in range(2)]


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with processes() as context:
        yield context


@pytest.fixture(scope="module")
def expected(context: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The undisturbed results, by the batches of a push."""
    found = {}
    for every in (1, 2):
        with thread_cluster(tmp_path_factory.mktemp("whole"), 1, TRAINERS) as cluster:
            found[every] = Job(context, cluster, every=every).results()
    return found


@pytest.mark.parametrize(("kill", "pservers"), CASES, ids=str)
def test_a_killed_trainer_does_not_change_the_bits(
    tmp_path: Path, context: Any, expected: Any, kill: Kill, pservers: int
) -> None:
    with thread_cluster(tmp_path, pservers, TRAINERS) as cluster:
        job = Job(context, cluster, kill)
        job.restart(kill.rank)
        assert_same(job.results(), expected[1])
