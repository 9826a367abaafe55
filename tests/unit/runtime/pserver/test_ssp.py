"""ssp(s): a trainer gets values only while it is at most s pushes ahead of the slowest remaining one."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.modes import parse_mode
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import thread_cluster

SPEC = TableSpec("w", "dense", (4,), SGD(1.0), zeros())


def made_core(mode: str, trainers: int = 2, connected: int | None = None) -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), trainers, mode=Mode.parse(mode)))
    for rank in range(trainers if connected is None else connected):
        core.handle(rank, wire.Message(wire.HELLO, rank, 1, parts=[wire.json_part({"trainers": trainers})]))
        core.handle(rank, wire.Message(wire.CREATE, rank, 2, parts=[wire.json_part(SPEC.to_json())]))
    return core


def answered(outputs: Sequence[Output]) -> list[tuple[int, int]]:
    """Return (rank, request) of each reply; none of them is an error."""
    replies = [output.message for output in outputs if isinstance(output, Reply)]
    assert all(reply.kind == wire.OK for reply in replies)
    return [(reply.rank, reply.request) for reply in replies]


def push(core: ServerCore, rank: int, step: int) -> list[tuple[int, int]]:
    part = wire.Part(wire.DENSE, -np.ones(4, np.float32), SPEC.key)
    return answered(core.handle(rank, wire.Message(wire.PUSH, rank, 100 + step, step=step, samples=1, parts=[part])))


def pull(core: ServerCore, rank: int, request: int) -> list[Output]:
    part = wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)
    return core.handle(rank, wire.Message(wire.PULL, rank, request, step=core.trainers[rank].pushed, parts=[part]))


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_pushes_are_answered_up_to_the_bound_and_pulls_wait_beyond_it(bound: int) -> None:
    core = made_core(f"ssp({bound})")
    assert [len(push(core, 0, step)) for step in range(bound + 1)] == [1] * bound + [0]
    assert pull(core, 0, 900) == []
    assert core.step == bound + 1  # applied anyway
    for ahead in range(bound + 1, bound + 3):
        mine = push(core, 1, ahead - bound - 1)
        assert sorted(mine) == sorted([(1, 100 + ahead - bound - 1), (0, 100 + ahead - 1), (0, 900)])
        assert push(core, 0, ahead) == []
        assert pull(core, 0, 900) == []


def test_a_delayed_pull_sees_the_push_that_released_it() -> None:
    core = made_core("ssp(0)")
    push(core, 0, 0)
    assert pull(core, 0, 900) == []
    part = wire.Part(wire.DENSE, -np.ones(4, np.float32), SPEC.key)
    outputs = core.handle(1, wire.Message(wire.PUSH, 1, 100, samples=1, parts=[part]))
    [mine] = [out.message for out in outputs if isinstance(out, Reply) and out.message.request == 900]
    assert mine.parts[0].array.tolist() == [2.0] * 4


def test_a_trainer_that_has_not_joined_yet_counts_as_zero_pushes() -> None:
    core = made_core("ssp(2)", trainers=2, connected=1)
    assert [len(push(core, 0, step)) for step in range(3)] == [1, 1, 0]


def test_a_probe_reports_what_is_held_and_for_which_trainer() -> None:
    core = made_core("ssp(1)", trainers=3)
    for step in range(2):
        push(core, 0, step)
    push(core, 1, 0)
    pull(core, 0, 900)
    [state] = [o.message for o in core.handle(0, wire.Message(wire.PROBE, 0, 5)) if isinstance(o, Reply)]
    assert (state.json()["held"], state.json()["waiting"]) == ([101, 900], [2])


def test_the_staleness_of_every_push_is_counted(tmp_path: Path) -> None:
    """Check the number of others' pushes applied between a trainer's last answer and its push, in a random order."""
    chance = random.Random(2)
    order = [chance.randrange(2) for _ in range(30)]
    expected: Counter[int] = Counter()
    known = [0, 0]
    for done, rank in enumerate(order):
        expected[done - known[rank]] += 1
        known[rank] = done + 1
    with thread_cluster(tmp_path, 1, 2, mode="ssp(99)") as cluster, contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(cluster.session(rank)) for rank in range(2)]
        tables: list[Any] = [ps.dense("w", 3, SGD(1.0)) for ps in sessions]
        for table in tables:
            table.pull()  # both know of no push
        batches = [iter(ps.steps(lambda pass_, rng: range(99), passes=1)) for ps in sessions]
        for rank in order:
            next(batches[rank])
            sessions[rank].push({tables[rank]: np.ones(3)}, samples=1)
        assert cluster.cores[0].policy.staleness == expected
    assert max(expected) > 3


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("sync", Mode("sync")),
        ("async", Mode("async")),
        ("half-async", Mode("half-async")),
        ("ssp(0)", Mode("ssp", 0)),
        ("geo(25)", Mode("geo", 25)),
    ],
)
def test_a_mode_is_printed_as_it_is_written(text: str, mode: Mode) -> None:
    assert (parse_mode(text), str(mode)) == (mode, text)


@pytest.mark.parametrize("text", ["", "Sync", "ssp", "ssp()", "ssp(-1)", "ssp(1.5)", "geo(0)", "async(3)", "sync\n"])
def test_unknown_modes_are_refused_with_a_list_of_the_valid_ones(text: str) -> None:
    with pytest.raises(UseError, match=r'is unknown; use "sync", "async", "half-async", "ssp\(4\)" or "geo\(25\)"'):
        parse_mode(text)
