"""Initial values from trainer 0 at one lane: repeats, other attempts, messages that do not fit, cuts and saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD, from_rank0
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_cut import Moment
from clusterctl.runtime.pserver.lane_state import CopiedCut, LaneState
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire
from unit.runtime.test_exactly_once import hello, replies

SPEC = TableSpec("w", "dense", (4,), SGD(1.0), from_rank0(None))
ROWS = TableSpec("e", "sparse", (2,), SGD(1.0), from_rank0(None), rows=6)
OTHER = TableSpec("o", "dense", (4,), SGD(1.0), zeros())


def made_core(mode: str = "sync", epoch: int = 0, attempt: int = 1) -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), 2, mode=Mode.parse(mode), epoch=epoch))
    for rank in range(2):
        core.handle(rank, hello(rank, 2, attempt))
        for spec in (SPEC, ROWS, OTHER):
            create = wire.Message(wire.CREATE, rank, 2, epoch, attempt, parts=[wire.json_part(spec.to_json())])
            [reply] = replies(core.handle(rank, create))
            assert reply.json() == ({} if spec is OTHER else {"unset": True})
    return core


def dense_values(value: float, **fields: Any) -> wire.Message:
    return wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, np.full(4, value, np.float32), SPEC.key)], **fields)


def row_values(ids: list[int], value: float, **fields: Any) -> wire.Message:
    values = np.full((len(ids), 2), value, np.float32)
    parts = [wire.Part(wire.IDS, np.array(ids, np.int64), ROWS.key), wire.Part(wire.ROWS, values, ROWS.key)]
    return wire.Message(wire.SET, **{"pieces": 2, **fields}, parts=parts)


def pull_of(spec: TableSpec, request: int = 900) -> wire.Message:
    ids = wire.Part(wire.IDS, np.arange(6, dtype=np.int64), spec.key)
    part = ids if spec is ROWS else wire.Part(wire.DENSE, np.empty(0, np.float32), spec.key)
    return wire.Message(wire.PULL, 1, request, parts=[part])


def push_of(rank: int, spec: TableSpec, **fields: Any) -> wire.Message:
    part = wire.Part(wire.DENSE, np.full(4, -1.0, np.float32), spec.key)
    return wire.Message(wire.PUSH, rank, 50, samples=1, parts=[part], **fields)


def kinds(outputs: Any) -> list[int]:
    return [reply.kind for reply in replies(outputs)]


def test_a_table_that_has_values_ignores_more() -> None:
    core = made_core("async")
    assert core.handle(1, pull_of(SPEC)) == []
    assert [r.request for r in replies(core.handle(0, dense_values(3.0, request=7)))] == [7, 900]
    assert kinds(core.handle(0, dense_values(9.0))) == [wire.OK]
    assert kinds(core.handle(0, push_of(0, SPEC))) == [wire.OK]
    assert kinds(core.handle(0, dense_values(9.0))) == [wire.OK]
    [reply] = replies(core.handle(1, pull_of(SPEC)))
    assert reply.parts[0].array.tolist() == [4.0] * 4


def test_a_pull_waits_until_the_last_piece_and_repeats_do_not_count_as_others() -> None:
    core = made_core()
    assert core.handle(1, pull_of(ROWS)) == []
    for _ in range(3):
        assert kinds(core.handle(0, row_values([0, 1, 2], 1.0, piece=0))) == [wire.OK]
    assert kinds(core.handle(0, row_values([3, 4, 5], 2.0, piece=1))) == [wire.OK, wire.OK]
    [reply] = replies(core.handle(1, pull_of(ROWS)))
    assert reply.parts[0].array[:, 0].tolist() == [1.0] * 3 + [2.0] * 3


def test_a_new_attempt_of_trainer_0_starts_over() -> None:
    core = made_core()
    core.handle(0, row_values([3, 4, 5], 1.0, piece=1))
    core.handle(0, hello(0, 2, attempt=2))
    assert kinds(core.handle(0, row_values([0, 1, 2], 1.0, piece=0))) == [wire.ERROR], "of the old attempt"
    core.handle(0, row_values([0, 1, 2], 2.0, piece=0, attempt=2))
    assert ROWS.key in core.state.unset
    core.handle(0, row_values([3, 4, 5], 2.0, piece=1, attempt=2))
    [reply] = replies(core.handle(1, pull_of(ROWS)))
    assert np.unique(reply.parts[0].array).tolist() == [2.0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_messages_that_do_not_fit_are_refused_and_change_nothing(mode: str) -> None:
    core = made_core(mode)
    four, key = np.ones(4, np.float32), SPEC.key
    for message in (
        dense_values(9.0, rank=1),
        dense_values(9.0, epoch=3),
        dense_values(9.0, piece=1),
        wire.Message(wire.SET),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four[:3], key)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four, key, 1)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four, key + 1)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four, key)] * 2),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four, key), wire.Part(wire.DENSE, four, OTHER.key)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.DENSE, four, OTHER.key)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.IDS, np.arange(4), key)]),
        wire.Message(wire.SET, parts=[wire.json_part({}), wire.Part(wire.DENSE, four, key)]),
        row_values([0, 6], 9.0),
        row_values([1, 0], 9.0),
        row_values([0], 9.0, piece=2),
        row_values([0], 9.0, piece=0, pieces=0),
        wire.Message(wire.SET, parts=[wire.Part(wire.ROWS, np.ones((4, 2), np.float32), ROWS.key)]),
        wire.Message(wire.SET, parts=[wire.Part(wire.IDS, np.arange(2), ROWS.key)]),
    ):
        [refused] = replies(core.handle(message.rank, message))
        assert refused.kind == wire.ERROR, message
        assert refused.json()["error"] in ("RefusedError", "WireError", "TableError")
    assert set(core.state.unset) == {SPEC.key, ROWS.key}
    assert not core.tables[SPEC.key].current.any()  # type: ignore[union-attr]
    assert len(core.tables[ROWS.key]) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_push_to_a_table_without_values_is_refused(mode: str) -> None:
    core = made_core(mode)
    [refused] = replies(core.handle(1, push_of(1, SPEC)))
    assert "which has no values from trainer 0 yet" in refused.json()["message"]
    assert core.step == 0


def test_a_pserver_that_was_restarted_alone_gets_the_values_of_the_next_attempt() -> None:
    core = made_core("async", epoch=1, attempt=2)
    assert kinds(core.handle(0, dense_values(3.0, epoch=1, attempt=2))) == [wire.OK]
    assert SPEC.key not in core.state.unset


def test_a_held_pull_fails_when_trainer_0_leaves_without_sending_values() -> None:
    core = made_core("async")
    core.handle(1, pull_of(SPEC))
    *_, refused = replies(core.drop([0]))
    assert (refused.request, refused.kind) == (900, wire.ERROR)


def test_a_cut_has_no_table_without_values_and_none_gets_them_during_it() -> None:
    core = made_core("async")
    core.policy.hold_cut(1)
    assert core.handle(0, dense_values(3.0, request=7)) == []
    [state] = replies(core.handle(0, wire.Message(wire.PROBE, 0, 8)))
    assert state.json()["held"] == [7], "it is not sent again"
    outputs = core.policy.make_cut(1, Moment((0, 0), 0, 0, 1))
    [copied] = [output for output in outputs if isinstance(output, CopiedCut)]
    assert [table.spec.name for table in copied.saves[0].tables] == ["o"]
    assert copied.table_sum == OTHER.key % 2**63
    assert kinds(outputs) == [wire.OK]
    assert set(core.state.unset) == {ROWS.key}


def test_a_save_has_no_table_without_values() -> None:
    core = made_core()
    save = wire.Message(wire.SAVE, 0, 60, parts=[wire.json_part({"tag": "now"})])
    [made] = [output for output in core.handle(0, save) if isinstance(output, Save)]
    assert [table.spec.name for table in made.tables] == ["o"]


def test_a_lane_that_owns_nothing_of_a_table_gets_it_with_the_others() -> None:
    """So that a save has the table of all lanes or of none."""
    cores = [ServerCore(LaneState(lane, Layout(2), 1)) for lane in range(2)]
    one = TableSpec("one", "dense", (1,), SGD(1.0), from_rank0(None))
    value = wire.Part(wire.DENSE, np.ones(1, np.float32), one.key)
    for core in cores:
        core.handle(0, hello(0, 1))
        [reply] = replies(core.handle(0, wire.Message(wire.CREATE, 0, 2, parts=[wire.json_part(one.to_json())])))
        assert reply.json()["unset"]
        table: Any = core.tables[one.key]
        fits, other = (value, value._replace(array=value.array[:0]))[:: 1 if table.count else -1]
        assert kinds(core.handle(0, wire.Message(wire.SET, parts=[other]))) == [wire.ERROR]
        assert kinds(core.handle(0, wire.Message(wire.SET, parts=[fits]))) == [wire.OK]
        assert not core.state.unset
    assert sorted(core.tables[one.key].count for core in cores) == [0, 1]  # type: ignore[union-attr]
