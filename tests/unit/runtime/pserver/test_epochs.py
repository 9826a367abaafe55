"""Requests of another epoch than the lane's: a process that was replaced, or one that knows of a restart before it."""

from __future__ import annotations

import pytest

from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire

ANSWERED = {wire.HELLO: wire.OK, wire.PROBE: wire.STATE}


@pytest.mark.parametrize("epoch", [0, 1, 3])
@pytest.mark.parametrize("kind", sorted(wire.REQUESTS))
def test_only_a_hello_and_a_probe_may_be_of_another_epoch(kind: int, epoch: int) -> None:
    core = ServerCore(LaneState(0, Layout(1), 1, epoch=2))
    parts = [wire.json_part({"trainers": 1})] if kind == wire.HELLO else []
    [output] = core.handle(0, wire.Message(kind, 0, 1, epoch, parts=parts))
    assert isinstance(output, Reply)
    assert output.message.kind == ANSWERED.get(kind, wire.ERROR)
    if kind not in ANSWERED:
        assert f"of epoch {epoch}, the job is in epoch 2" in output.message.json()["message"]
