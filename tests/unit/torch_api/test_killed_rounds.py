"""In the outer mode, too, a trainer that is killed anywhere, or a run that is resumed, ends with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.runtime.cluster import DEADLINE_S, thread_cluster
from unit.torch_api.stateful import TRAINERS, Job, Kill, assert_same, processes

pytestmark = pytest.mark.engines

#: Trainer 0 has 5 batches in a pass, trainer 1 has 4: two rounds each.
OPTIONS = {"rounds": 3, "workers": 0}
#: In inner steps; before a push is answered, after it, and when its state is written; in files of the states 0 to 2,
#: and of the checkpoint at 2; around the end of a pass.
POINTS = [
    *((point, step) for point in ("sent", "answered", "taken") for step in (1, 3)),
    ("forward", 5),
    *(("write", number) for number in (2, 3)),
    ("on_pass", 0),
    ("end", 0),
    ("ended", 1),
]
WIRES = ["float32", "int8", "int4"]
CASES = [
    (Kill(rank, *at), (1, 2, 4)[(number + rank) % 3], WIRES[(number // 3 + number) % 3])
    for number, at in enumerate(POINTS)
    for rank in range(2)
    if at[0] in ("sent", "answered") or number % 2 == rank
]
CUTS = {"checkpoints": True, "save_every": {"unit": "step", "n": 2}}


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with processes() as context:
        yield context


@pytest.fixture(scope="module")
def expected(context: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The undisturbed results, by WIRE."""
    found = {}
    for wire in WIRES:
        with thread_cluster(tmp_path_factory.mktemp("whole"), 1, TRAINERS, wire=wire) as cluster:
            found[wire] = Job(context, cluster, **OPTIONS).results()
    return found


@pytest.mark.parametrize(("kill", "pservers", "wire"), CASES, ids=str)
def test_a_trainer_killed_in_a_round_does_not_change_the_bits(
    tmp_path: Path, context: Any, expected: Any, kill: Kill, pservers: int, wire: str
) -> None:
    with thread_cluster(tmp_path, pservers, TRAINERS, wire=wire, **CUTS) as cluster:
        job = Job(context, cluster, kill, **OPTIONS)
        job.restart(kill.rank)
        assert_same(job.results(), expected[wire])


@pytest.mark.parametrize(("wire", "pservers"), [("float32", 4), ("int4", 1)])
def test_a_run_that_goes_on_from_a_checkpoint_between_rounds(
    tmp_path: Path, context: Any, expected: Any, wire: str, pservers: int
) -> None:
    """SAVE_EVERY counts rounds: the checkpoint at 3 is in the middle of the second pass."""
    more = {"wire": wire, "checkpoints": True, "save_every": {"unit": "step", "n": 3}}
    with thread_cluster(tmp_path, 2, TRAINERS, **more) as cluster:
        job = Job(context, cluster, Kill(1, "answered", 4), **OPTIONS)
        job.trainers[1].join(DEADLINE_S)
        job.kill()
    recover = {"tag": "step-000000003", "step": 3}
    with thread_cluster(tmp_path, pservers, TRAINERS, epoch=1, recover=recover, **more) as cluster:
        assert_same(Job(context, cluster, **OPTIONS).results(), expected[wire])
