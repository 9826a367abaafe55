"""In sync, lane 0 knows which trainers the others wait for, and since when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.runtime.pserver import sync
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import Reply
from clusterctl.runtime.pserver.sync import SyncUpdates
from clusterctl.runtime.wire import messages as wire
from unit.runtime.test_exactly_once import made_core, push


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(sync, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def long_wait(core: ServerCore) -> dict[str, Any]:
    assert isinstance(core.policy, SyncUpdates)
    return core.policy.long_wait()


def test_a_wait_is_long_three_seconds_after_the_last_push_that_arrived(clock: list[float]) -> None:
    core = made_core(3)
    clock[0] += 100
    assert long_wait(core) == {}, "nobody waits yet"
    core.handle(0, push(0, 0))
    clock[0] += 2
    core.handle(2, push(2, 0))
    clock[0] += 2.9
    core.handle(2, push(2, 0))
    assert long_wait(core) == {}
    clock[0] += 0.14
    assert long_wait(core) == {"awaits": [1], "awaited": 1, "waiting": 2, "awaits_s": 3.0}, "a repeat is no news"
    core.handle(1, push(1, 0))
    clock[0] += 100
    assert long_wait(core) == {}, "the step is over"


def test_at_most_four_trainers_are_named(clock: list[float]) -> None:
    core = made_core(7)
    core.handle(3, push(3, 0))
    clock[0] += 13
    assert long_wait(core) == {"awaits": [0, 1, 2, 4], "awaited": 6, "waiting": 1, "awaits_s": 13.0}


def test_a_trainer_that_waits_for_a_save_waits_for_the_pserver(clock: list[float]) -> None:
    core = made_core(2)

    def probed(rank: int) -> dict[str, Any]:
        [reply] = core.handle(rank, wire.Message(wire.PROBE, rank, 9, attempt=1))
        assert isinstance(reply, Reply)
        return reply.message.json()

    core.handle(0, wire.Message(wire.SAVE, 0, 2, attempt=1, parts=[wire.json_part({"tag": "mine"})]))
    core.handle(1, push(1, 0))
    assert probed(0) == {"held": [2], "waiting": [], "step": 0, "saving": True}
    assert probed(1)["waiting"] == [0]
    core.saved("mine")
    assert probed(0) == {"held": [], "waiting": [0], "step": 0}


def test_nobody_waits_for_a_trainer_that_is_given_up(clock: list[float]) -> None:
    core = made_core(3)
    core.handle(0, push(0, 0))
    clock[0] += 5
    core.drop([1])
    assert long_wait(core)["awaits"] == [2]
    core.drop([2])
    assert long_wait(core) == {}
