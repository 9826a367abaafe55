"""Messages that repeat take a short way through decoder and lane. Whatever is sent, it must do what the long way does.

Two lanes get the same bytes: one as it is, the other without anything kept from one message to the next, and with
every step made part by part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD, Adam, constant, from_rank0
from clusterctl.runtime.errors import WireError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.pserver.requests import Push
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.wire import messages as wire

Frames = list[bytes]
TRAINERS = 2
TABLES = {
    "a": TableSpec("a", "dense", (5,), SGD(0.5), constant(1)),
    "b": TableSpec("b", "dense", (3, 2), Adam(0.1), constant(-1)),
    "rows": TableSpec("rows", "sparse", (2,), SGD(0.5), constant(2)),
    "late": TableSpec("late", "dense", (4,), SGD(0.5), constant(0)),
    "unset": TableSpec("unset", "dense", (4,), SGD(0.5), from_rank0(np.ones(4, np.float32))),
    "unknown": TableSpec("unknown", "dense", (4,), SGD(0.5), constant(0)),
}
DENSE = ("a", "b", "late", "unset", "unknown")


def ones(name: str, number: float) -> np.ndarray[Any, Any]:
    return np.full(TABLES[name].elements, number, np.float32)


def parts_of(what: tuple[str, ...], number: float) -> list[wire.Part]:
    """Return the parts of a push. A name stands for a gradient of that table; `-` before it for one that is damaged."""
    parts: list[wire.Part] = []
    for name in what:
        key, offset = TABLES[name.lstrip("-~>")].key, 0
        if name in DENSE:
            parts.append(wire.Part(wire.DENSE, ones(name, number), key, offset))
        elif name == "rows":
            ids = np.array([-2, 7])
            parts += [wire.Part(wire.IDS, ids, key), wire.Part(wire.ROWS, np.full((2, 2), number, "f4"), key)]
        elif name.startswith("-"):
            parts.append(wire.Part(wire.DENSE, ones(name[1:], number)[1:], key, offset))
        elif name.startswith(">"):
            parts.append(wire.Part(wire.DENSE, ones(name[1:], number), key, 1))
        else:
            parts.append(wire.Part(wire.DENSE16, ones(name[1:], number).astype(np.float16), key, offset))
    return parts


@dataclass(frozen=True)
class Act:
    """What a trainer, or the lead, does next. `epoch`, `attempt` and `step` are relative to what would be right."""

    kind: str
    rank: int = 0
    what: tuple[str, ...] = ()
    samples: int = 1
    number: float = 1.0
    epoch: int = 0
    attempt: int = 0
    step: int = 0
    claims: int = 0
    facts: str = ""
    damage: tuple[int, int] | None = None


USUAL = st.sampled_from([("a",), ("a", "b"), ("b",), ("a", "b", "late"), ()])
ODD = st.lists(st.sampled_from([*DENSE, "rows", "-a", ">a", "~a", "-b"]), max_size=3).map(tuple)
MOSTLY_RIGHT = st.sampled_from([0] * 12 + [-1, 1])
PUSHES = st.builds(
    Act,
    st.just("push"),
    st.integers(0, TRAINERS - 1),
    st.one_of(USUAL, USUAL, USUAL, ODD),
    samples=st.sampled_from([1, 1, 2, 3, 0]),
    number=st.sampled_from([1.0, -0.0, 0.3, float("nan")]),
    epoch=MOSTLY_RIGHT,
    attempt=MOSTLY_RIGHT,
    step=MOSTLY_RIGHT,
    claims=st.sampled_from([0] * 20 + [1]),
    facts=st.sampled_from([""] * 6 + ["rates", "cursor"]),
    damage=st.one_of(*[st.none()] * 6, st.tuples(st.integers(0, 200), st.integers(-9, 255))),
)
#: A push of every trainer, the second with other samples and numbers.
STEPS = st.builds(
    Act,
    st.just("step"),
    what=USUAL,
    samples=st.sampled_from([1, 3, 0]),
    number=st.sampled_from([1.0, -0.0, 0.3, float("nan")]),
)
OTHERS = st.builds(
    Act,
    st.sampled_from(["hello", "late", "unset", "set", "epoch", "leave", "rows"]),
    st.integers(0, TRAINERS - 1),
    attempt=st.integers(0, 1),
)
ACTS = st.lists(st.one_of(*[PUSHES] * 4, *[STEPS] * 3, OTHERS), min_size=2, max_size=30)


class Forgetful(dict[Any, Any]):
    """A dict that keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class Lane:
    """A lane, and what trainers know of it."""

    def __init__(self, mode: str, *, short: bool) -> None:
        self.core = ServerCore(LaneState(0, Layout(1), TRAINERS, seed=7, mode=Mode.parse(mode)))
        self._short = short
        if not short:
            validator = self.core.state.validator
            validator._openings = Forgetful()
            opening = validator.opening
            validator.opening = lambda message: long_push(opening(message))  # type: ignore[method-assign]

    def handle(self, rank: int, frames: Frames) -> list[Frames | str]:
        """Return the replies, or the decoder's error, and the kinds of other outputs."""
        way = contextlib.nullcontext() if self._short else mock.patch.object(wire, "_recalled", wire._read)
        try:
            with way:
                message = wire.decode(frames)
        except WireError as error:
            return [str(error)]
        with np.errstate(all="ignore"):
            outputs = self.core.handle(rank, message)
        return [encoded(one.message) if isinstance(one, Reply) else type(one).__name__ for one in outputs]

    def values(self) -> list[bytes]:
        tables = sorted(self.core.tables.items())
        dense = [array.tobytes() for _, table in tables for array in (getattr(table, "current", np.empty(0)),)]
        return [*dense, repr(self.core.trainers).encode(), str(self.core.step).encode()]


def long_push(push: Push) -> Push:
    push.opening = None
    return push


def encoded(message: wire.Message) -> Frames:
    return [bytes(frame) for frame in wire.encode(message)]


class Run:
    """Both lanes, and the messages to them."""

    def __init__(self, mode: str) -> None:
        self.lanes = [Lane(mode, short=True), Lane(mode, short=False)]
        self.attempts = [1] * TRAINERS
        self.epoch = 0
        self._requests = 0
        for rank in range(TRAINERS):
            self.send(rank, self.message(wire.HELLO, rank, [wire.json_part({"trainers": TRAINERS})]))
            for name in ("a", "b"):
                self.make(rank, name)

    def message(self, kind: int, rank: int, parts: list[wire.Part], **fields: Any) -> wire.Message:
        self._requests += 1
        return wire.Message(kind, rank, self._requests, self.epoch, self.attempts[rank], parts=parts, **fields)

    def send(self, rank: int, message: wire.Message, damage: tuple[int, int] | None = None) -> None:
        frames = encoded(message)
        if damage is not None:
            frames[0] = damaged(frames[0], *damage)
        short, long = (lane.handle(rank, frames) for lane in self.lanes)
        assert short == long
        assert self.lanes[0].values() == self.lanes[1].values()

    def make(self, rank: int, name: str) -> None:
        self.send(rank, self.message(wire.CREATE, rank, [wire.json_part(TABLES[name].to_json())]))

    def act(self, act: Act) -> None:
        rank, core = act.rank, self.lanes[0].core
        if act.kind == "push":
            self.push(act)
        elif act.kind == "step":
            self.push(act)
            self.push(replace(act, rank=1, samples=(act.samples + 1) % 4, number=0.5))
        elif act.kind == "hello":
            self.attempts[rank] += act.attempt
            self.send(rank, self.message(wire.HELLO, rank, [wire.json_part({"trainers": TRAINERS})]))
        elif act.kind == "set":
            self.send(0, self.message(wire.SET, 0, [wire.Part(wire.DENSE, ones("unset", 3), TABLES["unset"].key)]))
        elif act.kind == "epoch":
            self.epoch += 1
            for lane in self.lanes:
                lane.core.begin_epoch(self.epoch)
        elif act.kind == "leave" and rank > 0 and core.step > 2:
            self.send(rank, self.message(wire.BYE, rank, []))
        elif act.kind in TABLES:
            self.make(rank, act.kind)

    def push(self, act: Act) -> None:
        core, rank = self.lanes[0].core, act.rank
        is_sync = core.state.mode.name == "sync"
        step = core.step if is_sync else core.trainers[rank].pushed
        facts = {"rates": {str(TABLES["a"].key): 0.25}} if act.facts == "rates" else {"cursor": 3} if act.facts else {}
        parts = parts_of(act.what, act.number) + ([wire.json_part(facts)] if facts else [])
        message = self.message(wire.PUSH, rank, parts, samples=act.samples, step=max(0, step + act.step))
        message.epoch, message.attempt = max(0, self.epoch + act.epoch), max(0, message.attempt + act.attempt)
        message.rank = (rank + act.claims) % TRAINERS
        self.send(rank, message, act.damage)


def damaged(frame: bytes, at: int, how: int) -> bytes:
    """Return a frame cut off or lengthened at its end, or with another byte somewhere."""
    if how < 0:
        return frame[:how] if at % 2 else frame + bytes(-how)
    at %= len(frame)
    return frame[:at] + bytes([how]) + frame[at + 1 :]


@given(ACTS)
@settings(max_examples=60, deadline=None)
def test_a_lane_does_the_same_the_short_way_in_sync(acts: list[Act]) -> None:
    run = Run("sync")
    for act in acts:
        run.act(act)


@given(ACTS)
@settings(max_examples=40, deadline=None)
def test_a_lane_does_the_same_the_short_way_in_async(acts: list[Act]) -> None:
    run = Run("async")
    for act in acts:
        run.act(act)


def step_of(run: Run, **fields: Any) -> None:
    for rank in range(TRAINERS):
        run.act(Act("push", rank, ("a", "b"), **fields))


def test_pushes_that_repeat_do_take_the_short_way() -> None:
    """After an attempt, an epoch and a new table too. A lane with rows makes its steps part by part."""
    run = Run("sync")
    core = run.lanes[0].core
    with mock.patch.object(core.policy, "_apply_alike", wraps=core.policy._apply_alike) as short:  # type: ignore[attr-defined]
        for steps, kind in enumerate(("", "hello", "epoch", "late")):
            run.act(Act(kind, attempt=1))
            step_of(run)
            step_of(run, samples=3)
            assert short.call_count == 2 * steps + 1
        assert core.step == 8


def test_a_directory_that_was_read_still_needs_all_its_bytes() -> None:
    frame = encoded(wire.Message(wire.PUSH, parts=parts_of(("a", "b"), 1)))[0]
    assert wire.decode([frame]).parts[0].array.tolist() == [1] * 5
    for length in range(len(frame)):
        with_less = damaged(frame, 1, length - len(frame))
        for frames in ([with_less], [frame, b""], [frame + bytes(8)]):
            assert is_refused(frames), (length, frames)
    assert wire.decode([frame]).parts[1].array.tolist() == [1] * 6


def test_a_frame_of_a_directory_that_was_read_must_have_its_length() -> None:
    frames = encoded(wire.Message(wire.PUSH, parts=[wire.Part(wire.DENSE, np.ones(5_000, "f4"), 1)]))
    assert len(wire.decode(frames).parts[0].array) == 5_000
    for second in (frames[1][:-4], frames[1] + bytes(4), b""):
        assert is_refused([frames[0], second])
    assert is_refused(frames[:1])


def test_few_directories_are_kept_and_none_with_many_parts() -> None:
    wire._recalled.cache_clear()
    for count in (1, wire._KEPT_PARTS, wire._KEPT_PARTS + 1, 5_000):
        wire.decode(encoded(wire.Message(wire.PUSH, parts=[wire.later_part(1, 1)] * count)))
    assert wire._recalled.cache_info().currsize == 2
    for key in range(3 * wire._DIRECTORIES_KEPT):
        wire.decode(encoded(wire.Message(wire.PUSH, parts=[wire.later_part(key, 1)])))
    assert wire._recalled.cache_info().currsize == wire._DIRECTORIES_KEPT


def is_refused(frames: Frames) -> bool:
    try:
        wire.decode(frames)
    except WireError:
        return True
    return False


def kept_openings() -> Iterator[int]:
    core = ServerCore(LaneState(0, Layout(1), 1))
    core.handle(0, wire.Message(wire.HELLO, 0, 1, parts=[wire.json_part({"trainers": 1})]))
    for number in range(9):
        spec = TableSpec(f"t{number}", "dense", (2,), SGD(0.5), constant(0))
        core.handle(0, wire.Message(wire.CREATE, 0, 2, parts=[wire.json_part(spec.to_json())]))
    for step in range(400):
        names = [f"t{bit}" for bit in range(9) if step >> bit & 1]
        keys = [TableSpec(name, "dense", (2,), SGD(0.5), constant(0)).key for name in names]
        parts = [wire.Part(wire.DENSE, np.ones(2, "f4"), key) for key in keys]
        message = wire.decode(encoded(wire.Message(wire.PUSH, 0, 3 + step, step=step, samples=1, parts=parts)))
        core.handle(0, message)
        yield len(core.state.validator._openings)
    assert core.step == 400


def test_few_openings_are_kept() -> None:
    sizes = list(kept_openings())
    assert max(sizes) <= 256 < len(sizes)
