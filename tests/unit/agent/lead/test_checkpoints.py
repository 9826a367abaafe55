"""The checkpoints that are kept: the newest few, the best one, and for a while the one the run was resumed from."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.lead.actions import DropManifests, DropModelManifests, SendOrder
from clusterctl.agent.lead.saving.checkpoints import (
    CheckpointRetention,
    CompleteCheckpoint,
    LoggedValue,
    ModelRetention,
)
from clusterctl.common.run_spec import KeepBest
from unit.agent.plays import Play

AUC = KeepBest("auc", "max")


def tag(step: int) -> str:
    return f"step-{step:09d}"


def add(retention: CheckpointRetention, *steps: int) -> list[int]:
    """Return the steps of the checkpoints that are kept after the last of these."""
    kept: list[str] = []
    for step in steps:
        kept = retention.add(CompleteCheckpoint(tag(step), step))
    return [int(name[5:]) for name in kept]


def test_the_checkpoint_a_run_was_resumed_from_is_kept_until_enough_newer_ones_are_complete() -> None:
    retention = CheckpointRetention(1, first=CompleteCheckpoint(tag(500), 500))
    assert add(retention, 600) == [600]
    retention = CheckpointRetention(2, first=CompleteCheckpoint(tag(500), 500))
    assert add(retention, 600) == [500, 600]
    assert add(retention, 700) == [600, 700]


def test_a_checkpoint_that_is_written_again_counts_once() -> None:
    assert add(CheckpointRetention(2), 10, 20, 20) == [10, 20]


def test_the_best_one_is_kept_too_and_the_newest_of_equals() -> None:
    retention = CheckpointRetention(1, AUC)
    for step, value in ((10, 0.7), (20, 0.9), (30, 0.9), (40, 0.8)):
        retention.log(0, LoggedValue(step, value, 1.0))
        kept = add(retention, step)
    assert kept == [30, 40]
    assert not retention.full, "an older run may have a better one"


def test_only_values_logged_at_or_before_the_cut_count_and_by_weight() -> None:
    retention = CheckpointRetention(1, KeepBest("loss", "min"))
    retention.log(0, LoggedValue(9, 1.0, 3.0))
    retention.log(1, LoggedValue(10, 2.0, 1.0))  # the mean is 1.25
    retention.log(1, LoggedValue(11, 0.0, 1.0))
    assert add(retention, 10) == [10]
    retention.log(0, LoggedValue(20, 1.3, 1.0))
    retention.log(1, LoggedValue(20, 1.3, 1.0))
    assert add(retention, 20) == [10, 20]
    retention.log(0, LoggedValue(30, math.nan, 1.0))
    assert add(retention, 30) == [10, 30], "a value that is not a number is ignored"


def test_a_value_that_arrives_after_its_checkpoint_counts_when_the_next_is_complete() -> None:
    retention = CheckpointRetention(1, AUC)
    assert add(retention, 10) == [10]
    retention.log(0, LoggedValue(10, 0.9, 1.0))
    retention.log(0, LoggedValue(20, 0.5, 1.0))
    assert add(retention, 20) == [10, 20]


def test_without_sync_each_trainer_has_its_own_step() -> None:
    retention = CheckpointRetention(1, AUC)
    for step, value in ((5, 0.9), (8, 0.1)):
        retention.log(0, LoggedValue(step, value, 1.0))
    retention.log(1, LoggedValue(8, 0.9, 1.0))
    assert retention.add(CompleteCheckpoint(tag(13), 13, (5, 8))) == [tag(13)]
    retention.log(0, LoggedValue(20, 0.8, 1.0))
    retention.log(1, LoggedValue(20, 0.8, 1.0))
    assert retention.add(CompleteCheckpoint(tag(40), 40, (20, 20))) == [tag(13), tag(40)]


@settings(max_examples=40)
@given(st.integers(1, 4), st.sampled_from(["max", "min"]), st.lists(st.integers(0, 5), max_size=12))
def test_the_kept_ones_are_those_that_an_exhaustive_search_finds(keep: int, direction: str, values: list[int]) -> None:
    retention = CheckpointRetention(keep, KeepBest("auc", direction))
    scores: dict[int, int] = {}
    kept: list[int] = []
    for step, value in enumerate(values):
        retention.log(0, LoggedValue(step, float(value), 1.0))
        scores[step] = value
        kept = add(retention, step)
        sign = 1 if direction == "max" else -1
        best = max(scores, key=lambda one: (sign * scores[one], one))
        assert kept == sorted({*sorted(scores)[-keep:], best})


def saved(play: Play, rank: int, step: int, **more: Any) -> list[Any]:
    return play.says(rank, "saved", rank=rank, tag=tag(step), step=step, checkpoint=True, **more)


def test_older_checkpoints_are_removed_only_when_the_manifest_of_a_newer_one_is_written() -> None:
    play = Play(nodes=2).reach("running")
    for step in (10, 20, 30):
        saved(play, 0, step)
        saved(play, 1, step)
        play.says(0, "kept", tag=tag(step), step=step, steps=[])
    saved(play, 0, 40)
    (complete,) = saved(play, 1, 40)
    assert (complete.tag, complete.checkpoint) == (tag(40), True)
    note, drop, order = play.says(0, "kept", tag=tag(40), step=40, steps=[])
    assert note.event == {"event": "saved", "tag": tag(40), "step": 40, "complete": True, "checkpoint": True}
    kept = [tag(20), tag(30), tag(40)]
    assert drop == DropManifests(kept, tag(40))
    assert order == SendOrder({"do": "keep", "tags": kept, "newest": tag(40), "alone": True})


def test_a_model_and_a_checkpoint_with_the_same_tag_are_separate() -> None:
    play = Play(nodes=2).reach("running")
    saved(play, 0, 10)
    assert play.says(1, "saved", rank=1, tag=tag(10), step=10) == []
    assert play.manifests() == []


def model(pass_: int) -> str:
    return f"pass-{pass_:05d}"


def test_the_newest_models_are_kept_and_the_one_of_the_best_checkpoint() -> None:
    models = ModelRetention(2)
    for pass_ in range(4):
        models.add(model(pass_), 10 * (pass_ + 1))
    models.add("mine", 20)
    assert models.drop(CompleteCheckpoint(tag(20), 20)) == [model(0)]  # pass 1 ends with step 20
    assert models.drop(CompleteCheckpoint(tag(25), 25)) == []  # pass 1 is the newest before it
    assert models.drop(None) == [model(1)]
    assert models.drop(None) == []


def test_a_resumed_run_counts_the_models_of_the_run_before_in_the_order_of_their_passes() -> None:
    models = ModelRetention(2, {"pass-99999": 1, "pass-100000": 2, "best": 3})
    models.add("pass-100001", 3)
    assert models.drop(None) == ["pass-99999"]


def test_models_between_passes_count_as_those_of_passes_in_the_order_of_their_steps() -> None:
    models = ModelRetention(2, {"pass-00001": 20, "step-000000025": 25})
    for tag_, step in (("at-step-000000030", 30), ("at-step-000000040", 40), ("mine", 45)):
        models.add(tag_, step)
    assert models.drop(CompleteCheckpoint(tag(35), 35)) == ["pass-00001"]
    models.add("pass-00002", 50)
    assert (
        models.drop(CompleteCheckpoint(tag(35), 35)) == []
    )  # the model at step 30 is the newest before the best checkpoint
    assert models.drop(None) == ["at-step-000000030"]


def test_a_complete_model_lets_an_older_one_go_its_manifest_first() -> None:
    play = Play(nodes=2, models=ModelRetention(1)).reach("running")
    for pass_ in range(2):
        play.says(0, "saved", rank=0, tag=model(pass_), step=10 * pass_)
        done = play.says(1, "saved", rank=1, tag=model(pass_), step=10 * pass_)
        assert [type(action).__name__ for action in done] == ["WriteManifest", "RecordEvent"], "not yet in place"
        done = play.says(0, "written", tag=model(pass_), checkpoint=False, bytes=9, sha256="ab")
    drop, order = (action for action in done if getattr(action, "message", {}).get("do") != "copy")
    assert (drop, order) == (DropModelManifests([model(0)]), SendOrder({"do": "drop_models", "tags": [model(0)]}))
