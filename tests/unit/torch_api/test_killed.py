"""A trainer that is killed anywhere, or a run that is resumed, ends with the bits of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.runtime.cluster import DEADLINE_S, thread_cluster
from unit.torch_api.stateful import BATCHES, PASSES, TRAINERS, Job, Kill, assert_same, processes

pytestmark = pytest.mark.engines

#: Steps of a pass: trainer 0 has one batch more than trainer 1.
STEPS = -(-BATCHES // TRAINERS)
POINTS = [
    ("forward", 7),
    ("answered", 1),
    ("taken", 7),
    ("write", 5),
    ("on_pass", PASSES - 1),
    ("answered", STEPS),
    ("end", 0),
    ("ended", 1),
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


@pytest.mark.parametrize(("point", "number", "rank"), [("on_pass", 0, 0), ("taken", 3, 1), ("answered", 4, 0)])
def test_gradients_that_a_pass_leaves_for_the_next_push_survive(
    tmp_path: Path, context: Any, expected: Any, point: str, number: int, rank: int
) -> None:
    """With one push for two batches, the last batch of trainer 0 in a pass goes with the first one of the next."""
    with thread_cluster(tmp_path, 2, TRAINERS) as cluster:
        job = Job(context, cluster, Kill(rank, point, number), every=2, workers=0)
        job.restart(rank)
        assert_same(job.results(), expected[2])


def test_a_trainer_that_is_killed_twice_in_a_row(tmp_path: Path, context: Any, expected: Any) -> None:
    with thread_cluster(tmp_path, 2, TRAINERS) as cluster:
        job = Job(context, cluster, Kill(0, "answered", 7), workers=0)
        job.restart(0, 2, Kill(0, "forward", 1))
        job.restart(0, 3)
        assert_same(job.results(), expected[1])


@pytest.mark.parametrize(("step", "pservers"), [(5, 1), (8, 4)])
def test_a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(
    tmp_path: Path, context: Any, expected: Any, step: int, pservers: int
) -> None:
    unit = "pass" if step % STEPS == 0 else "step"
    saves = {"checkpoints": True, "save_every": {"unit": unit, "n": 1 if unit == "pass" else 4}}
    with thread_cluster(tmp_path, 2, TRAINERS, **saves) as cluster:
        job = Job(context, cluster, Kill(1, "answered", step + 1), workers=0)
        job.trainers[1].join(DEADLINE_S)
        job.kill()
    recover = {"tag": f"step-{step:09d}", "step": step}
    with thread_cluster(tmp_path, pservers, TRAINERS, epoch=1, recover=recover, **saves) as cluster:
        assert_same(Job(context, cluster).results(), expected[1])
