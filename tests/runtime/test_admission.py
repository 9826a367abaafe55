"""Admission of peers and messages: CURVE keys, ranks, malformed and hostile frames, over real sockets."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runtime import SGD, zeros
from clusterctl.runtime.errors import RefusedError, WireError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.sockets import open_dealer
from tests.runtime.cluster import ThreadCluster, ask, environment, thread_cluster

SILENCE_MS = 1_000
DENSE = TableSpec("w", "dense", (70_000,), SGD(1.0), zeros())
SPARSE = TableSpec("e", "sparse", (3,), SGD(1.0), zeros())


def small_training(ps: Session) -> float:
    w = ps.dense("w", 4, SGD(1.0))
    for _ in ps.steps(lambda pass_, rng: range(3), passes=1):
        ps.push({w: -np.ones(4)}, samples=1)
    return float(w.value[0])


def answer_to(cluster: ThreadCluster, keys: dict[str, Any] | None, frames: list[Any]) -> list[bytes] | None:
    """Return what a new connection with `keys` gets for `frames`; None for silence."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server_key = environment(cluster.root, "trainer", 0).keys()["servers"][0] if keys else ""
    socket = open_dealer(context, cluster.addresses[0], keys, server_key)
    try:
        socket.send_multipart(frames)
        return socket.recv_multipart() if socket.poll(SILENCE_MS) else None
    finally:
        socket.close(linger=0)
        context.term()


def hello(rank: int, trainers: int) -> list[Any]:
    parts = [wire.json_part({"trainers": trainers})]
    return [bytes(f) for f in wire.encode(wire.Message(wire.HELLO, rank, 1, parts=parts))]


def test_an_unlisted_key_gets_nothing(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, security="curve") as cluster:
        public, secret = zmq.curve_keypair()
        stranger = {"public": public.decode(), "secret": secret.decode()}
        assert answer_to(cluster, stranger, hello(0, 1)) is None
        assert answer_to(cluster, None, hello(0, 1)) is None
        assert cluster.train(small_training) == [3.0]


def test_a_rank_that_does_not_match_the_key_is_refused(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2, security="curve") as cluster:
        env = environment(cluster.root, "trainer", 1, cluster.addresses)
        link = RemoteLink(env)
        request = wire.Message(wire.HELLO, 0, 1, parts=[wire.json_part({"trainers": 2})])
        try:
            with pytest.raises(RefusedError, match="from trainer 0; its key belongs to trainer 1"):
                ask(link, request)
        finally:
            link.close()
        assert cluster.train(small_training) == [3.0, 3.0]
        assert sum(cluster.lanes[0].refused.values()) == 1


def test_a_pserver_key_is_not_accepted_as_a_trainers(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1, security="curve") as cluster:
        assert answer_to(cluster, environment(cluster.root, "pserver", 0).keys(), hello(0, 1)) is None


def mutated(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """Apply one to three random damages: flipped, cut, grown, doubled, dropped or swapped bytes and frames."""
    out = list(frames)
    for _ in range(chance.randint(1, 3)):
        index = chance.randrange(len(out)) if out else 0
        frame = bytearray(out[index]) if out else bytearray()
        damage = chance.randrange(6)
        if damage == 0 and frame:
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        elif damage == 1:
            del frame[chance.randrange(len(frame) + 1) :]
        elif damage == 2:
            frame += chance.randbytes(chance.randrange(64))
        elif damage == 3:
            out.insert(index, bytes(frame))
        elif damage == 4 and len(out) > 1:
            del out[index]
            continue
        else:
            chance.shuffle(out)
        if out and damage in (0, 1, 2):
            out[index] = bytes(frame)
    return out


def good_messages() -> list[list[bytes]]:
    ids, rows = np.array([-5, 2, 9]), np.ones((3, 3), np.float32)
    sparse = [wire.Part(wire.IDS, ids, SPARSE.key), wire.Part(wire.ROWS, rows, SPARSE.key)]
    dense = wire.Part(wire.DENSE, np.ones(70_000, np.float32), DENSE.key)
    messages = [
        wire.Message(wire.HELLO, 0, 1, parts=[wire.json_part({"trainers": 2})]),
        wire.Message(wire.CREATE, 0, 2, parts=[wire.json_part(SPARSE.to_json())]),
        wire.Message(wire.CREATE, 0, 2, parts=[wire.json_part(DENSE.to_json())]),
        wire.Message(wire.PULL, 0, 3, version=0, parts=[sparse[0]]),
        wire.Message(wire.PUSH, 0, 4, step=0, samples=5, parts=[*sparse, dense]),
        wire.Message(wire.PROBE, 0, 5, version=4),
        wire.Message(wire.SAVE, 0, 6, flags=wire.END_OF_PASS, parts=[wire.json_part({"tag": "t"})]),
    ]
    return [[bytes(frame) for frame in wire.encode(m)] for m in messages]


def feed(core: ServerCore, frames: list[bytes]) -> None:
    try:
        message = wire.decode(frames)
    except WireError:
        return
    if message.kind in (wire.BYE, wire.SAVE):
        return  # these would end the sync job or write files; they carry no arrays
    for output in core.handle(0, message):
        assert isinstance(output, Reply)
        wire.encode(output.message)


def test_40000_damaged_messages_neither_break_the_core_nor_make_it_allocate() -> None:
    chance = random.Random(1)
    core = ServerCore(LaneState(0, Layout(1), 2))
    good = good_messages()
    for frames in good[:3]:
        feed(core, frames)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(40_000):
        choices = [good[0], good[1], good[3], good[5]] if number % 50 else good
        feed(core, mutated(chance, chance.choice(choices)))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 300
    assert core.step == 0


@settings(max_examples=1_500)
@given(st.lists(st.binary(max_size=200), max_size=6))
def test_arbitrary_frames_are_refused_as_malformed(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        wire.decode(frames)


def claim(chance: random.Random) -> list[bytes]:
    """Return a message with an arbitrary header; in one case of three its directory does not fit its few bytes."""

    def number(bits: int, *likely: int) -> int:
        odd = (0, 1, 3, 2**16, 2**31, 2**40, 2**63, 2**64 - 1, chance.getrandbits(64))
        return chance.choice(likely if likely and chance.random() < 0.9 else odd) % 2**bits

    entries, body, lies = [], b"", chance.random() < 0.3
    for _ in range(chance.randrange(5)):
        kind, items = chance.randrange(1, 9), chance.choice((0, 1, 3))
        width = 3 if kind in (wire.ROWS, wire.ROWS16) else 1
        size = items * width * {wire.DENSE: 4, wire.IDS: 8, wire.ROWS: 4, wire.DENSE16: 2, wire.ROWS16: 2}.get(kind, 1)
        body += chance.choice((bytes(size), chance.randbytes(size))) + bytes(-size % 8)
        table = chance.choice((DENSE.key, SPARSE.key, SPARSE.key, number(64)))
        if lies:
            items, width, kind = number(64, items), number(32, width), chance.randrange(10)
        entries.append((table, number(64, 0), items, number(64, 0), width, kind, number(2, 0) if lies else 0))
    small = [number(32, *likely) for likely in ((0,), (0, 1), (0,), (1,), (0,), (0,))]
    big = [number(64, *likely) for likely in ((7,), (0,), (0, wire.NEWEST), (0, 5), (0,))]
    last = (number(32), number(32, len(entries)), number(32, 1, 2))
    kind = chance.choice((*wire.REQUESTS, chance.randrange(256)))
    head = wire.HEADER.pack(wire.MAGIC, wire.VERSION, kind, chance.randrange(8), *small, *big, *last)
    return [head + b"".join(wire.ENTRY.pack(*entry) for entry in entries) + body]


def test_10000_messages_with_false_sizes_neither_break_the_core_nor_make_it_allocate() -> None:
    chance = random.Random(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        core = ServerCore(LaneState(0, Layout(1), 2))
        for frames in good_messages()[:3]:
            feed(core, frames)
        for _ in range(100):
            feed(core, claim(chance))
        assert core.step == 0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 100


def test_3000_damaged_messages_over_a_socket_leave_a_pserver_working(tmp_path: Path) -> None:
    chance = random.Random(2)
    with thread_cluster(tmp_path, 1, 2) as cluster:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = open_dealer(context, cluster.addresses[0], None, "")
        good = [m for m in good_messages() if wire.decode(m).kind in (wire.PULL, wire.PROBE)]
        try:
            for _ in range(3_000):
                frames = mutated(chance, chance.choice(good))
                socket.send_multipart([frame or b"x" for frame in frames] or [b""])
                while socket.poll(0):
                    socket.recv_multipart()
            assert cluster.train(small_training) == [3.0, 3.0]
        finally:
            socket.close(linger=0)
            context.term()


def test_a_frame_above_the_bound_is_not_accepted(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 1) as cluster:
        huge = bytes(wire.MAX_FRAME_BYTES + 1)
        assert answer_to(cluster, None, [huge]) is None
        assert cluster.train(small_training) == [3.0]
        assert not cluster.lanes[0].refused


def test_a_message_survives_encoding() -> None:
    parts = [
        wire.Part(wire.IDS, np.array([-1, 2**40]), 7),
        wire.Part(wire.ROWS, np.arange(6, dtype=np.float32).reshape(2, 3), 7),
        wire.Part(wire.DENSE, np.arange(5, dtype=np.float32), 2**64 - 1, 10),
        wire.Part(wire.DENSE, np.arange(9_000, dtype=np.float32), 8),
        wire.Part(wire.DENSE16, np.arange(3, dtype=np.float16), 8, 3),
        wire.Part(wire.ROWS16, np.ones((2, 5_000), np.float16), 7),
        wire.Part(wire.SAME, np.arange(16, dtype=np.uint8), 7),
        wire.later_part(9, 77),
        wire.json_part({"a": 1}),
    ]
    sent = wire.Message(wire.PUSH, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, wire.LAST_OF_PASS, 15, parts)
    received = wire.decode([bytes(frame) for frame in wire.encode(sent)])
    assert {**vars(received), "parts": None} == {**vars(sent), "parts": None}
    for original, decoded in zip(sent.parts, received.parts, strict=True):
        np.testing.assert_array_equal(original.array, decoded.array)
        assert (original.kind, original.table, original.offset) == (decoded.kind, decoded.table, decoded.offset)
