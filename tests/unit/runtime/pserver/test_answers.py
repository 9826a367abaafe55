"""Answers to the pushes of a step: encoded once for trainers that get the same, and never for those that do not."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from clusterctl.runtime import SGD, constant
from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire

SHORT = TableSpec("short", "dense", (4,), SGD(0.5), constant(0))
LONG = TableSpec("long", "dense", (70_000,), SGD(0.5), constant(0))


class Memory:
    """Shares every table with one trainer only."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def greeting(self, rank: int) -> dict[str, Any]:
        return {}

    def allocate(self, lane: int, key: int, count: int) -> tuple[Floats, Floats]:
        return np.zeros(count, np.float32), np.zeros(count, np.float32)

    def position(self, rank: int, lane: int, key: int, values: Floats) -> int | None:
        return 64 if rank == self._rank and key == LONG.key else None

    def room(self, rank: int, position: int, size: int) -> None:
        return None


def made_core(trainers: int, memory: Memory | None = None) -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), trainers, lender=memory))
    for rank in range(trainers):
        core.handle(rank, wire.Message(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": trainers})]))
        for spec in (SHORT, LONG):
            core.handle(rank, wire.Message(wire.CREATE, rank, 2, parts=[wire.json_part(spec.to_json())]))
    return core


def push(core: ServerCore, rank: int, parts: list[wire.Part], **fields: Any) -> list[wire.Message]:
    message = wire.Message(wire.PUSH, rank, 10 + core.step, step=core.step, samples=1, parts=parts, **fields)
    received = wire.decode([bytes(frame) for frame in wire.encode(message)])
    return [output.message for output in core.handle(rank, received) if isinstance(output, Reply)]


def short_push(core: ServerCore, rank: int, number: float) -> list[wire.Message]:
    return push(core, rank, [wire.Part(wire.DENSE, np.full(4, number, "f4"), SHORT.key)])


def test_the_values_of_a_step_are_encoded_once_for_all_trainers() -> None:
    core = made_core(4, Memory(1))
    for step in range(3):
        answers = [answer for rank in range(4) for answer in short_push(core, rank, rank + step)]
        with mock.patch.object(wire, "_encoded", wraps=wire._encoded) as encoded:
            frames = [wire.encode(answer) for answer in answers]
        assert encoded.call_count == 1
        received = [wire.decode([bytes(frame) for frame in each]) for each in frames]
        assert [(one.rank, one.request) for one in received] == [(rank, 10 + step) for rank in range(4)]
        expected = core.tables[SHORT.key].current.tolist()  # type: ignore[union-attr]
        assert [one.parts[0].array.tolist() for one in received] == [expected] * 4


def test_a_table_in_shared_memory_is_a_position_for_the_trainer_that_has_it_and_values_for_the_others() -> None:
    """Trainer 0 pushes the long table; the others, which do not, get it with the answer to their opening."""
    core = made_core(3, Memory(1))
    short_push(core, 1, 1)
    short_push(core, 2, 1)
    assert push(core, 0, [wire.later_part(LONG.key, 1)], pieces=2) == []
    gradient = wire.Part(wire.DENSE, np.ones(70_000, "f4"), LONG.key)
    answers = {(one.rank, one.piece): one for one in push(core, 0, [gradient], piece=1, pieces=2)}
    assert sorted(answers) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    positions = {at: {part.table: part.position for part in one.parts} for at, one in answers.items()}
    assert positions[0, 1] == {LONG.key: None}
    assert positions[0, 0] == {SHORT.key: None}
    assert positions[1, 0] == {SHORT.key: None, LONG.key: 64}
    assert positions[2, 0] == {SHORT.key: None, LONG.key: None}
    received = wire.decode([bytes(frame) for frame in wire.encode(answers[2, 0])])
    last = {part.table: part.array[-1] for part in received.parts}
    assert last == {SHORT.key: np.float32(-2 / 6), LONG.key: np.float32(-1 / 6)}
