"""Repeated and reordered messages at a lane, and killed trainers: every push counts once, and waits are explained."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from clusterctl.common.modes import Mode
from clusterctl.runtime import SGD
from clusterctl.runtime.errors import RefusedError, UnreachableError
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import DEADLINE_S, ask, environment, free_port, make_job, thread_cluster

SPEC = TableSpec("w", "dense", (4,), SGD(1.0), zeros())


def made_core(trainers: int, mode: str = "sync") -> ServerCore:
    core = ServerCore(LaneState(0, Layout(1), trainers, mode=Mode.parse(mode)))
    for rank in range(trainers):
        core.handle(rank, hello(rank, trainers))
        core.handle(rank, wire.Message(wire.CREATE, rank, 2, parts=[wire.json_part(SPEC.to_json())]))
    return core


def hello(rank: int, trainers: int, attempt: int = 1) -> wire.Message:
    return wire.Message(wire.HELLO, rank, 1, attempt=attempt, parts=[wire.json_part({"trainers": trainers})])


def push(rank: int, step: int, value: float = -1.0, **fields: Any) -> wire.Message:
    part = wire.Part(wire.DENSE, np.full(4, value, np.float32), SPEC.key)
    return wire.Message(wire.PUSH, rank, 100 + step, step=step, samples=1, parts=[part], **fields)


def pull(rank: int, version: int) -> wire.Message:
    part = wire.Part(wire.DENSE, np.empty(0, np.float32), SPEC.key)
    return wire.Message(wire.PULL, rank, 900 + version, version=version, parts=[part])


def replies(outputs: Sequence[Output]) -> list[wire.Message]:
    return [output.message for output in outputs if isinstance(output, Reply)]


def value(core: ServerCore) -> float:
    [reply] = replies(core.handle(0, pull(0, wire.NEWEST)))
    return float(reply.parts[0].array[0])


def test_random_repeats_and_late_copies_apply_every_push_once() -> None:
    for mode in ("sync", "async", "half-async"):
        chance = random.Random(5)
        core = made_core(3, mode)
        sent: list[wire.Message] = []
        for step in range(20):
            for rank in chance.sample(range(3), 3):
                sent.append(push(rank, step))
                core.handle(rank, push(rank, step))
                for late in chance.sample(sent, min(len(sent), 3)):
                    core.handle(late.rank, replace(late))
        assert value(core) == pytest.approx(20.0 if mode == "sync" else 60.0)


def test_old_attempts_and_other_epochs_are_refused() -> None:
    core = made_core(1)
    assert replies(core.handle(0, push(0, 0, attempt=2)))[0].kind == wire.ERROR
    assert replies(core.handle(0, hello(0, 1, attempt=2)))[0].kind == wire.OK
    assert replies(core.handle(0, push(0, 0, attempt=1)))[0].kind == wire.ERROR
    assert replies(core.handle(0, push(0, 0, attempt=2, epoch=3)))[0].kind == wire.ERROR
    assert core.handle(0, push(0, 0, attempt=2, piece=1)) == []  # its opening may be lost: both are sent again
    assert core.step == 0
    assert replies(core.handle(0, push(0, 0, attempt=2)))[0].kind == wire.OK


def test_a_piece_that_was_not_announced_by_its_opening_is_refused() -> None:
    core = made_core(2)
    core.handle(0, push(0, 0))
    assert replies(core.handle(0, push(0, 0, piece=1)))[0].kind == wire.ERROR
    core.handle(1, push(1, 0))
    assert (core.step, value(core)) == (1, 1.0)


def test_a_broken_connection_is_reestablished(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 1) as cluster:

        def program(ps: Session) -> int:
            w = ps.dense("w", 4, SGD(1.0))
            for batch in ps.steps(lambda pass_, rng: range(6), passes=1):
                if batch % 2:
                    link: Any = ps._client._link
                    link._reopen(link._connections[1])
                ps.push({w: np.ones(4)}, samples=1)
            return ps.step

        assert cluster.train(program) == [6]


def test_a_lane_that_answers_probes_late_still_gets_what_was_lost(tmp_path: Path) -> None:
    """It answers each probe when the next one has come; the first request is lost."""
    make_job(tmp_path, 1, 1)
    routes: set[bytes] = set()

    def serve(lane: zmq.Socket[bytes]) -> None:
        lost, last = 0, None
        while True:
            route, *frames = lane.recv_multipart()
            routes.add(route)
            message = wire.decode(frames, None)
            if message.kind == wire.PROBE:
                state = wire.json_part({"held": [], "waiting": []})
                last, before = message.answer(wire.STATE, parts=[state]), last
                if before is not None:
                    lane.send_multipart([route, *wire.encode(before)])
            elif message.request != lost and not lost:
                lost = message.request
            else:
                lane.send_multipart([route, *wire.encode(message.answer(wire.OK))])
                return

    with zmq.Context() as context, context.socket(zmq.ROUTER) as lane:
        port = lane.bind_to_random_port("tcp://127.0.0.1")
        thread = threading.Thread(target=serve, args=(lane,), daemon=True)
        thread.start()
        env = environment(tmp_path, "trainer", 0, (f"127.0.0.1:{port}",))
        link = RemoteLink(env, probe_every_s=0.02)
        try:
            assert ask(link, wire.Message(wire.BYE, 0, 1)).kind == wire.OK
        finally:
            link.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(routes) == 1, "over the same connection: a new one would have been made for a silent lane"


def test_a_silent_pserver_is_an_error_after_the_grace_period(tmp_path: Path) -> None:
    make_job(tmp_path, 1, 1, node_grace_s=0.5)
    env = environment(tmp_path, "trainer", 0, (f"127.0.0.1:{free_port()}",))
    began = time.monotonic()
    unanswered: list[int] = []
    link = RemoteLink(env, probe_every_s=0.05, on_unanswered=unanswered.append)
    try:
        with pytest.raises(UnreachableError, match=r"pserver 0 .* has not answered"):
            Session(env, link, SupervisorSocket(None), None)
    finally:
        link.close()
    assert unanswered == [0], "its supervisor is notified"
    assert time.monotonic() - began < 30


def test_a_trainer_with_a_different_trainer_count_is_refused(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2) as cluster:
        env = environment(cluster.root, "trainer", 0, cluster.addresses)
        link = RemoteLink(env)
        try:
            with pytest.raises(RefusedError, match="counts 3 trainers"):
                ask(link, hello(0, 3))
        finally:
            link.close()


def pull_and_die(session: Session) -> None:
    with session as ps:
        ps.dense("w", 4, SGD(1.0)).pull()
        raise InterruptedError


def test_a_successor_uses_other_request_numbers_than_its_predecessor(tmp_path: Path) -> None:
    """An answer to a request of a killed trainer is thus never taken for one of its successor's."""
    numbers: list[list[int]] = []
    with thread_cluster(tmp_path, 1, 1) as cluster:
        handle = cluster.cores[0].handle
        cluster.cores[0].handle = lambda rank, message: (numbers[-1].append(message.request), handle(rank, message))[1]
        for attempt in (1, 2):
            numbers.append([])
            with pytest.raises(InterruptedError):
                pull_and_die(cluster.session(0, attempt=attempt))
    assert max(numbers[0]) < min(numbers[1])
