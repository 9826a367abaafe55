"""Admission of peers and messages: CURVE keys, ranks, malformed and hostile frames, over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from clusterctl.runtime import SGD
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from clusterctl.runtime.wire import messages as wire
from clusterctl.runtime.wire.sockets import open_dealer
from unit.runtime.cluster import ThreadCluster, ask, environment, thread_cluster

SILENCE_MS = 300


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
