"""Saves on a lane without tables: the other lanes of its pserver write the file."""

from __future__ import annotations

import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire

TAG = "pass-00000"


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("written_after", [0, 1, 2])
def test_a_lane_without_tables_releases_trainers_whenever_the_others_have_written(
    mode: str, written_after: int
) -> None:
    """The file may be written before, between or after the requests that reach such a lane."""
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse(mode)))
    for rank in range(2):
        core.handle(rank, wire.Message(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": 2})]))
    for rank in range(2):
        if written_after == rank:
            core.saved(TAG)
        core.handle(
            rank, wire.Message(wire.SAVE, rank, 2, flags=wire.END_OF_PASS, parts=[wire.json_part({"tag": TAG})])
        )
    outputs = [output for rank in range(2) for output in core.handle(rank, wire.Message(wire.BYE, rank, 3))]
    if written_after == 2:
        outputs += core.saved(TAG)
    replies = [output.message for output in outputs if isinstance(output, Reply)]
    assert {(reply.kind, reply.rank, reply.request) for reply in replies} == {(wire.OK, 0, 3), (wire.OK, 1, 3)}
