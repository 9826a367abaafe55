"""Pushes in pieces at one lane: any order, repeats, and a trainer that is killed between any two of its messages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD, Adagrad, uniform
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire
from unit.runtime.small import PART, cut_small

LONG = TableSpec("long", "dense", (2 * PART + 500,), Adagrad(0.1), uniform(0.5))
SHORT = TableSpec("short", "dense", (5,), SGD(0.5), uniform(0.5))
ROWS = TableSpec("rows", "sparse", (2,), Adagrad(0.1), uniform(0.5))
IDS = np.array([-3, 4, 10**12])
PIECES = 3

Values = dict[str, Any]
Messages = list[wire.Message]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def made_core(trainers: int = 2, mode: str = "sync") -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), trainers, seed=7, mode=Mode.parse(mode)))
    for rank in range(trainers):
        join(core, rank)
    return core


def join(core: ServerCore, rank: int, attempt: int = 1) -> int:
    """Say hello and declare the tables; return the step to continue from."""
    fields = wire.json_part({"trainers": core.state.trainer_count})
    [hello] = answers(core.handle(rank, wire.Message(wire.HELLO, rank, 1, attempt=attempt, parts=[fields])))
    for number, spec in enumerate((LONG, SHORT, ROWS), 2):
        part = wire.json_part(spec.to_json())
        [made] = answers(core.handle(rank, wire.Message(wire.CREATE, rank, number, attempt=attempt, parts=[part])))
        assert made.kind == wire.OK
    return int(hello.json()["step"])


def answers(outputs: Sequence[Output]) -> Messages:
    return [output.message for output in outputs if isinstance(output, Reply)]


def pulled(core: ServerCore, rank: int, version: int = wire.NEWEST, attempt: int = 1) -> Values:
    nothing = np.empty(0, np.float32)
    parts = [wire.Part(wire.DENSE, nothing, spec.key) for spec in (LONG, SHORT)]
    parts.append(wire.Part(wire.IDS, IDS, ROWS.key))
    ask = wire.Message(wire.PULL, rank, 50, attempt=attempt, version=version, parts=parts)
    [reply] = answers(core.handle(rank, ask))
    assert reply.kind == wire.OK, reply.parts
    of = {spec.name: [p.array for p in reply.parts if p.table == spec.key] for spec in (LONG, SHORT, ROWS)}
    return {name: np.concatenate(arrays) for name, arrays in of.items()}


def push(rank: int, step: int, values: Values, samples: int | None = None, attempt: int = 1) -> Messages:
    """Return a push whose gradients depend on the values: an opening, and a piece for each part of the long table."""
    count = rank + 1 if samples is None else samples
    fields: dict[str, Any] = {"step": step, "samples": count, "attempt": attempt, "batch": step, "pieces": 1 + PIECES}
    long, short, rows = (np.sin(values[name] * (rank + 2)) for name in ("long", "short", "rows"))
    opening = [
        wire.later_part(LONG.key, PIECES),
        wire.Part(wire.DENSE, short, SHORT.key),
        wire.Part(wire.IDS, IDS[rank:], ROWS.key),
        wire.Part(wire.ROWS, rows[rank:], ROWS.key),
    ]
    number = 1000 * attempt + 100 * step
    out = [wire.Message(wire.PUSH, rank, number, parts=opening, **fields)]
    for n in range(PIECES):
        part = wire.Part(wire.DENSE, long[n * PART : (n + 1) * PART], LONG.key, n * PART)
        out.append(wire.Message(wire.PUSH, rank, number + n + 1, piece=n + 1, parts=[part], **fields))
    return out


def send(core: ServerCore, messages: Messages) -> Messages:
    """Send copies, since a lane keeps the messages it gets."""
    return [reply for message in messages for reply in answers(core.handle(message.rank, replace(message)))]


def train(core: ServerCore, steps: int) -> Values:
    for step in range(core.step, steps):
        values = pulled(core, 0)
        send(core, [message for rank in range(core.state.trainer_count) for message in push(rank, step, values)])
    assert core.step == steps
    return pulled(core, 0)


def assert_same(mine: Values, theirs: Values) -> None:
    for name, array in mine.items():
        np.testing.assert_array_equal(array.view(np.uint32), theirs[name].view(np.uint32), err_msg=name)


@pytest.mark.parametrize("seed", range(2))
def test_pieces_in_any_order_and_repeated_give_the_same_bits(seed: int) -> None:
    chance, core = random.Random(seed), made_core()
    for step in range(3):
        values = pulled(core, 0)
        unanswered = {(m.rank, m.request): m for rank in range(2) for m in push(rank, step, values)}
        first = list(unanswered.values())
        while unanswered:
            again = [*unanswered.values(), *chance.choices(first, k=3)]
            for reply in send(core, chance.sample(again, len(again))):
                assert reply.kind == wire.OK, reply.json()
                unanswered.pop((reply.rank, reply.request), None)
    assert_same(train(made_core(), 3), pulled(core, 0))


def test_a_part_is_answered_as_soon_as_all_trainers_have_sent_it() -> None:
    core = made_core()
    values = pulled(core, 0)
    mine, theirs = push(0, 0, values), push(1, 0, values)
    assert send(core, mine[:2]) == []
    assert send(core, theirs[:1]) == []
    both = send(core, theirs[1:2])
    assert [(reply.rank, reply.piece) for reply in both] == [(0, 1), (1, 1)]
    send(core, mine[2:] + theirs[2:])
    np.testing.assert_array_equal(both[0].parts[0].array, pulled(core, 0)["long"][:PART])


@pytest.mark.parametrize("other_is_first", [True, False])
@pytest.mark.parametrize("sent", range(2 + PIECES))
def test_a_trainer_killed_between_any_two_messages_of_its_push_is_succeeded_bit_for_bit(
    sent: int, other_is_first: bool
) -> None:
    expected = train(made_core(), 3)
    core = made_core()
    train(core, 1)
    start = pulled(core, 0)
    other = push(0, 1, start)
    before, after = (other, []) if other_is_first else ([], other)
    send(core, [*before, *push(1, 1, start)[:sent]])

    step = join(core, 1, attempt=2)
    assert step == (2 if other_is_first and sent == 1 + PIECES else 1)
    received = pulled(core, 1, version=1, attempt=2)
    assert_same(start, received)
    answered = send(core, [*push(1, 1, received, attempt=2), *after])
    mine = {reply.piece: reply for reply in answered if reply.rank == 1}
    assert sorted(mine) == [0, 1, 2, 3]
    now = np.concatenate([mine[n + 1].parts[0].array for n in range(PIECES)])
    assert core.step == 2
    np.testing.assert_array_equal(now, pulled(core, 0)["long"])
    values = pulled(core, 0)
    send(core, [*push(0, 2, values), *push(1, 2, values, attempt=2)])
    assert_same(expected, pulled(core, 0))


def test_a_successor_that_pushes_something_else_in_a_step_already_begun_is_refused() -> None:
    core = made_core()
    values = pulled(core, 0)
    send(core, [*push(0, 0, values), *push(1, 0, values)[:2]])
    join(core, 1, attempt=2)
    [reply] = send(core, push(1, 0, values, samples=9, attempt=2)[:1])
    assert reply.kind == wire.ERROR
    assert "attempt 2 of trainer 1 pushed something else in step 0 than attempt 1:" in reply.json()["message"]


@pytest.mark.parametrize("mode", ["async", "geo(2)"])
@pytest.mark.parametrize("sent", range(1, 2 + PIECES))
def test_outside_sync_a_push_of_a_killed_trainer_is_not_applied_again(mode: str, sent: int) -> None:
    core = made_core(1, mode)
    values = pulled(core, 0)
    send(core, push(0, 0, values)[:sent])
    step = join(core, 0, attempt=2)
    answered = send(core, push(0, step, values, attempt=2))
    complete = made_core(1, mode)
    send(complete, push(0, 0, values))
    if step:
        send(complete, push(0, 1, values))
    assert {reply.piece for reply in answered} == {0, 1, 2, 3}
    assert_same(pulled(complete, 0), pulled(core, 0, attempt=2))
    assert core.step == step + 1


def test_outside_sync_a_successor_may_push_less_than_was_announced() -> None:
    """Its reader may return different batches; the step must not wait for pieces that will never be sent."""
    core = made_core(1, "async")
    values = pulled(core, 0)
    send(core, push(0, 0, values)[:2])
    join(core, 0, attempt=2)
    empty = wire.Message(wire.PUSH, 0, 5000, attempt=2, step=0, samples=0)
    assert [reply.kind for reply in send(core, [empty])] == [wire.OK]
    assert core.step == 1


@pytest.mark.parametrize("mode", ["sync", "async", "geo(2)"])
def test_a_repeated_push_gets_exactly_its_original_answer(mode: str) -> None:
    """A long table is returned once, not with each of its pieces."""
    core = made_core(1, mode)
    messages = push(0, 0, pulled(core, 0))
    first, again = ({r.piece: r for r in send(core, messages)} for _ in range(2))
    assert {r.flags for r in first.values()} == {0}
    assert {r.flags for r in again.values()} == {wire.REPEATED}
    for piece, reply in first.items():
        repeat = again[piece]
        assert [(p.table, p.offset, p.array.tolist()) for p in reply.parts] == [
            (p.table, p.offset, p.array.tolist()) for p in repeat.parts
        ]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_repeated_piece_of_an_unknown_table_is_refused(mode: str) -> None:
    core = made_core(1, mode)
    train(core, 1)
    for key, offset in ((12345, 0), (ROWS.key, 0), (LONG.key, 7), (LONG.key, 10**15)):
        part = wire.Part(wire.DENSE, np.ones(PART, np.float32), key, offset)
        [reply] = send(core, [wire.Message(wire.PUSH, 0, 9, piece=1, samples=1, parts=[part])])
        assert reply.kind == wire.ERROR
    [reply] = send(core, [wire.Message(wire.PUSH, 0, 9, piece=1, samples=1)])
    assert reply.kind == wire.ERROR


def test_a_pull_that_asks_for_a_table_many_times_is_refused() -> None:
    core = made_core(1)
    parts = [wire.Part(wire.DENSE, np.empty(0, np.float32), LONG.key)] * 2
    [reply] = send(core, [wire.Message(wire.PULL, 0, 9, parts=parts)])
    assert reply.kind == wire.ERROR


def test_a_pending_pull_of_a_killed_trainer_is_not_answered_to_its_successor() -> None:
    core = made_core()
    start = pulled(core, 0)
    send(core, push(0, 0, start))
    ahead = wire.Message(wire.PULL, 0, 60, version=1, parts=[wire.Part(wire.IDS, IDS, ROWS.key)])
    assert send(core, [ahead]) == []
    join(core, 0, attempt=2)
    answered = send(core, push(1, 0, start))
    assert core.step == 1
    assert 60 not in [reply.request for reply in answered]
