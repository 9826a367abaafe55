"""SAVE_MODEL_EVERY: which models are saved, and that the last values always are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.manifest import is_scheduled_tag, pass_of, step_tag
from clusterctl.common.modes import SaveInterval
from clusterctl.runtime import SGD, load_model
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.modes import CHECKPOINT, MODEL, CutSchedule
from clusterctl.runtime.trainer.session import Session
from unit.runtime.cluster import ThreadCluster, thread_cluster

STEPS = 6  # of a pass
ENDS = {"unit": "end", "n": 0}


def counting(passes: int, *, stop_at: int | None = None, after: Callable[[], None] = lambda: None) -> Any:
    """Return a program that subtracts 1 from `w` in every step, and so counts them; `after` is called after each."""

    def program(ps: Session) -> float:
        w = ps.dense("w", 4, SGD(1.0))
        e = ps.embedding("e", 1, SGD(1.0), rows=9)
        for number, _ in enumerate(ps.steps(lambda pass_, rng: range(STEPS), passes=passes), 1):
            ps.push({w: -np.ones(4), e: (np.arange(9), np.ones((9, 1)))}, samples=1)
            after()
            if number == stop_at:
                break
        return float(w.value[0])

    return program


def tags(cluster: ThreadCluster, prefix: str = "") -> list[str]:
    """Return the tags that all pservers have saved, in their order."""
    receipts = [r for r in cluster.receipts if r["tag"].startswith(prefix) and not r.get("checkpoint")]
    every = list(dict.fromkeys(receipt["tag"] for receipt in receipts))
    for tag in every:
        assert sorted(r["pserver"] for r in receipts if r["tag"] == tag) == list(range(len(cluster.pservers))), tag
    return every


def pushes(mode: str, passes: int) -> int:
    """Return the pushes of both trainers; those of geo(2) are exchanges."""
    return passes * STEPS * (1 if mode.startswith("geo") else 2)


def checkpoints(cluster: ThreadCluster) -> list[int]:
    return sorted({receipt["step"] for receipt in cluster.receipts if receipt.get("checkpoint")})


def saved_value(cluster: ThreadCluster, tag: str) -> float:
    model: Any = load_model(cluster.root / "output" / tag)
    return float(model["w"][0])


@pytest.mark.parametrize(
    ("mode", "every", "passes", "expected"),
    [
        ("sync", None, 3, [0, 1, 2]),
        ("sync", {"unit": "pass", "n": 2}, 5, [1, 3, 4]),
        ("async", {"unit": "pass", "n": 2}, 4, [1, 3]),
        ("geo(2)", ENDS, 3, [2]),
    ],
)
def test_models_of_passes_are_saved_as_configured_and_always_the_last(
    tmp_path: Path, mode: str, every: dict[str, Any] | None, passes: int, expected: list[int]
) -> None:
    facts: dict[str, Any] = {} if every is None else {"save_model_every": every}
    with thread_cluster(tmp_path, 2, 2, mode=mode, ports_num_for_sparse=1, **facts) as cluster:
        cluster.train(counting(passes))
    assert tags(cluster) == [f"pass-{pass_:05d}" for pass_ in expected]
    if mode == "sync":
        for pass_ in expected:
            assert saved_value(cluster, f"pass-{pass_:05d}") == (pass_ + 1) * STEPS


@pytest.mark.parametrize(
    ("every", "stop_at", "expected"),
    [
        (ENDS, 2 * STEPS, "pass-00001"),
        ({"unit": "pass", "n": 2}, 2 * STEPS + 1, "pass-00002"),
        ({"unit": "step", "n": 100}, 2 * STEPS + 1, "pass-00002"),
    ],
)
def test_a_program_that_breaks_out_of_its_loop_has_its_last_values_saved(
    tmp_path: Path, every: dict[str, Any], stop_at: int, expected: str
) -> None:
    with thread_cluster(tmp_path, 2, 2, save_model_every=every) as cluster:
        assert cluster.train(counting(5, stop_at=stop_at)) == [stop_at] * 2
    assert tags(cluster)[-1] == expected
    assert saved_value(cluster, expected) == stop_at


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_models_between_passes_are_saved_at_steps_and_the_last_at_the_end(tmp_path: Path, mode: str) -> None:
    facts = {"save_model_every": {"unit": "step", "n": 4}}
    with thread_cluster(tmp_path, 2, 2, mode=mode, ports_num_for_sparse=1, **facts) as cluster:
        cluster.train(counting(3, after=cluster.lead.wait_for_cut))
    made = tags(cluster)
    between = [tag for tag in made if tag != "pass-00002"]
    assert between == sorted(between)
    # A model of the last step may be written after that of the last pass: their values are the same.
    assert made in ([*between, "pass-00002"], [*between[:-1], "pass-00002", "at-step-000000036"])
    assert all(is_scheduled_tag(tag) for tag in made)
    if mode == "sync":
        assert made[:-1] == [step_tag(step) for step in (4, 8, 12, 16)]
        assert [saved_value(cluster, tag) for tag in made] == [4, 8, 12, 16, 18]
    else:
        assert len(made) >= 3
    assert checkpoints(cluster) == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_clock_announces_models_and_checkpoints_each_at_its_own_times(tmp_path: Path, mode: str) -> None:
    facts: dict[str, Any] = {"checkpoints": True, "save_every": {"unit": "s", "n": 5}}
    facts["save_model_every"] = {"unit": "s", "n": 100}
    with thread_cluster(tmp_path, 2, 2, mode=mode, ports_num_for_sparse=1, **facts) as cluster:
        cluster.lanes[0]._clock = itertools.count(time.monotonic(), 2.0).__next__  # two seconds at each look
        cluster.train(counting(6, after=cluster.lead.wait_for_cut))
    models = tags(cluster, "at-step-")
    assert 1 <= len(models) < len(checkpoints(cluster))
    total = 6 * STEPS if mode == "sync" else pushes(mode, 6)
    assert max(receipt["step"] for receipt in cluster.receipts if not receipt.get("checkpoint")) == total


def test_two_purposes_that_are_due_at_once_share_a_cut() -> None:
    schedule = CutSchedule(SaveInterval("s", 1), SaveInterval("s", 1))
    assert schedule.decode(schedule.encode(7, CHECKPOINT | MODEL)) == (7, CHECKPOINT | MODEL)
    assert schedule.encode(8, MODEL) > schedule.encode(7, CHECKPOINT | MODEL)
    for models in (SaveInterval("pass", 1), SaveInterval("pass", 5), SaveInterval("end", 0)):
        plain = CutSchedule(SaveInterval("s", 1), models)
        assert (plain.encode(7, CHECKPOINT), plain.decode(7)) == (7, (7, CHECKPOINT))


def test_what_the_program_saves_is_not_of_the_schedule_and_cannot_take_its_tags(tmp_path: Path) -> None:
    def program(ps: Session) -> None:
        w = ps.dense("w", 1, SGD(1.0))
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1, on_pass=lambda pass_: ps.save("mine")):
            ps.push({w: -np.ones(1)}, samples=1)
        for tag in ("pass-00007", step_tag(7)):
            with pytest.raises(UseError, match="reserved"):
                ps.save(tag)

    with thread_cluster(tmp_path, 2, 2, save_model_every=ENDS) as cluster:
        cluster.train(program)
    assert tags(cluster) == ["mine", "pass-00000"]
    assert [tag for tag in (*tags(cluster), "step-000000007", "at-step-7") if is_scheduled_tag(tag)] == ["pass-00000"]
    assert [pass_of(tag) for tag in ("pass-00012", step_tag(12), "pass-1")] == [12, None, None]
