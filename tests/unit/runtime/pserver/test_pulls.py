"""Pulls in sync: of this step and the last one, and so many at once as a trainer may have waiting."""

from __future__ import annotations

import numpy as np
import pytest

from clusterctl.runtime.pserver import updates
from clusterctl.runtime.pserver.lane_state import Output, Reply
from clusterctl.runtime.wire import messages as wire
from unit.runtime.pserver.test_cuts import SPEC, LaneOfTwo, answered


def lane_at(step: int) -> LaneOfTwo:
    lane = LaneOfTwo("sync")
    for number in range(step):
        assert lane.push(0, number) == []
        assert sorted(rank for rank, _ in answered(lane.push(1, number))) == [0, 1]
    return lane


def pull(lane: LaneOfTwo, rank: int, version: int, request: int = 900) -> list[Output]:
    part = wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)
    return lane._handle(wire.PULL, rank, request, parts=[part], version=version)


def only(outputs: list[Output]) -> wire.Message:
    [reply] = outputs
    assert isinstance(reply, Reply)
    return reply.message


def test_values_of_this_step_and_of_the_last_one_are_there_and_older_ones_are_refused() -> None:
    lane = lane_at(3)
    values = {version: only(pull(lane, 0, version)) for version in (3, 2, 1)}
    assert [values[version].parts[0].array[0] for version in (3, 2)] == [3.0, 2.0]
    assert values[1].kind == wire.ERROR
    assert "pulled version 1" in values[1].json()["message"]


def test_a_trainer_may_have_so_many_pulls_waiting_and_a_repeated_one_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "_PULLS_HELD", 2)
    lane = lane_at(1)
    for request in (900, 901, 901, 900):
        assert pull(lane, 0, 2, request) == []
    assert pull(lane, 1, 2) == []
    refused = only(pull(lane, 0, 2, 902))
    assert (refused.kind, "2 pulls waiting" in refused.json()["message"]) == (wire.ERROR, True)
