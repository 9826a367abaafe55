"""Streams that break, fall silent or cannot be opened: training goes on over ZeroMQ, with the same bits."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD, Adagrad, uniform
from clusterctl.runtime.pserver.asynchronous import AsyncUpdates
from clusterctl.runtime.pserver.lane_state import Output
from clusterctl.runtime.pserver.lanes import Lane
from clusterctl.runtime.stream import sealed
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.sealed import SealedStream
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.wire import messages as wire
from support.processes import wait_until
from unit.runtime.cluster import DEADLINE_S, ThreadCluster, thread_cluster
from unit.runtime.small import PART, cut_small

LANES = {"ports_num": 2, "ports_num_for_sparse": 1}
#: Spec fields with which trainers and pservers of one host use this carrier for short and long messages.
CARRIERS: dict[str, dict[str, Any]] = {
    "zmq": {"streams": "off", "shm": "off"},
    "tcp": {"shm": "off"},
    "unix": {"security": "curve"},
    "sealed": {"security": "curve", "shm": "off"},
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a push in many messages, all over the stream; none is long enough for shared memory."""
    cut_small(monkeypatch)


def value_dependent(ps: Session) -> Any:
    """Train over what carries the messages now; each value depends on those before."""
    w = ps.dense("w", 6 * PART, Adagrad(0.1), uniform(0.5))
    e = ps.embedding("e", 3, Adagrad(0.1))
    for ids in ps.steps(lambda pass_, rng: (rng.integers(-9, 9, 20) for _ in range(6)), 1):
        rows = e.pull(ids)
        ps.push({w: np.sin(w.value * rows.sum()), e: (ids, rows + w.value[:3])}, samples=1 + ps.rank)
    return w.value.copy(), e.pull(np.arange(-9, 9)), carriers(ps)


def once_streams_are_open(ps: Session) -> Any:
    """Do the same when all streams are open."""
    link: Any = ps._client._link
    w = ps.dense("early", 8 * 512, SGD(0.1))
    assert wait_until(lambda: w.pull() is not None and not link._carriers.openings)
    return value_dependent(ps)


def carriers(ps: Session) -> Counter[str]:
    """Return by what the lanes of a trainer are reached, and of how many lanes."""
    link: Any = ps._client._link
    streams = [connection.carrier._stream for connection in link._connections.values()]
    return Counter("zmq" if one is None else carrier_of(one) for one in streams)


def carrier_of(stream: Stream) -> str:
    if stream.sock.family == socket.AF_UNIX:
        return "unix"
    return "sealed" if isinstance(stream, SealedStream) else "tcp"


def assert_same(results: list[Any], expected: Any) -> None:
    for result in results:
        for actual, reference in zip(result[:2], expected[:2], strict=True):
            np.testing.assert_array_equal(actual, reference)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch, thread_cluster(tmp_path_factory.mktemp("alone"), 1, 2) as cluster:
        cut_small(patch)
        return cluster.train(value_dependent)[0]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_carrier_gives_the_same_bits(tmp_path: Path, undisturbed: Any, carrier: str) -> None:
    with thread_cluster(tmp_path, 2, 2, **LANES, **CARRIERS[carrier]) as cluster:
        results = cluster.train(once_streams_are_open)
    assert_same(results, undisturbed)
    assert [result[2] for result in results] == [Counter({carrier: 6})] * 2


def cut_the_cable(stream: Stream, frames: Any) -> None:
    stream.sock.shutdown(socket.SHUT_RDWR)


def send_half(stream: Stream, frames: Any) -> None:
    """Break in the middle of a message, as when a process is killed."""
    stream.sock.send(struct.pack("<I", 1_000) + b"half")
    stream.sock.shutdown(socket.SHUT_RDWR)


def send_garbage(stream: Stream, frames: Any) -> None:
    stream.sock.send(b"\xff" * 64)


def say_nothing(stream: Stream, frames: Any) -> None:
    """Let what is sent from now on vanish, as in a network that neither delivers nor reports it."""
    stream.send = lambda frames: True  # type: ignore[method-assign]


class Saboteur:
    """Breaks each stream on one side when it has sent so many messages of the program."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, side: str, after: int, how: Callable[[Stream, Any], None]
    ) -> None:
        self.broken = 0
        sent: Counter[Stream] = Counter()
        send, lock = Stream.send, threading.Lock()

        def sabotaged(stream: Stream, frames: Any) -> bool:
            if (stream._most_queued is None) == (side == "trainer"):
                with lock:
                    sent[stream] += 1
                    is_due = sent[stream] == after
                    self.broken += is_due
                if is_due:
                    with contextlib.suppress(OSError):
                        how(stream, frames)
                if how is say_nothing and sent[stream] >= after:
                    return True
            return send(stream, frames)

        monkeypatch.setattr(Stream, "send", sabotaged)


SABOTAGES = [
    ("unix", "trainer", cut_the_cable),
    ("sealed", "pserver", send_half),
    ("sealed", "trainer", send_garbage),
    ("tcp", "trainer", send_half),
    pytest.param("tcp", "pserver", say_nothing, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("carrier", "side", "how"), SABOTAGES)
def test_losing_every_stream_in_the_middle_of_a_push_changes_no_bit(
    tmp_path: Path,
    undisturbed: Any,
    monkeypatch: pytest.MonkeyPatch,
    carrier: str,
    side: str,
    how: Callable[[Stream, Any], None],
) -> None:
    saboteur = Saboteur(monkeypatch, side, after=8, how=how)
    grace = {"node_grace_s": 6} if how is say_nothing else {}  # a lane that is silent for 3 s gets a new connection
    with thread_cluster(tmp_path, 2, 2, **LANES, **grace, **CARRIERS[carrier]) as cluster:
        cluster.probe_every_s = 0.05
        results = cluster.train(once_streams_are_open)
    assert_same(results, undisturbed)
    assert saboteur.broken > 8
    assert sum(result[2]["zmq"] for result in results) > 4, "the others broke with the last message"


def test_a_stream_that_is_never_accepted_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.runtime.stream.carrier._OPENING_S", 0.05)
    here = threading.Event()

    def program(ps: Session) -> Any:
        w = ps.dense("w", 4, SGD(1.0))
        link: Any = ps._client._link
        for _ in ps.steps(lambda pass_, rng: range(2), passes=1):
            if ps.rank == 1 and not here.is_set():
                assert here.wait(DEADLINE_S)
            if ps.rank == 0 and not here.is_set():
                threading.Thread(
                    target=lambda: here.set() if wait_until(lambda: not link._carriers.openings) else None
                ).start()
            ps.push({w: np.ones(4)}, samples=1)
        return link._carriers.openings

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(thread_cluster(tmp_path, 1, 2, **CARRIERS["tcp"]))
        cluster.probe_every_s = 0.05
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        offer_instead(cluster, monkeypatch, {"port": silent.getsockname()[1], "token": "00" * 32})
        assert cluster.train(program)[0] == 0


def offer_instead(cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch, offer: Any) -> None:
    for lane in cluster.lanes:
        monkeypatch.setattr(lane.core, "offer_stream", lambda rank: offer)


def test_a_lane_forgets_the_streams_of_trainers_that_left(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 1, 2) as cluster:
        cluster.train(value_dependent)
        [lane] = cluster.lanes
        streams: Any = lane._streams
        assert wait_until(lambda: not streams._streams and not streams._by_rank)


def test_streams_to_other_hosts_are_sealed_in_a_run_with_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with thread_cluster(tmp_path / "curve", 1, 1, security="curve") as cluster:
        assert [set(offers_of(lane)) for lane in cluster.lanes] == [{"name", "port", "sealed", "token"}]
    with thread_cluster(tmp_path / "none", 1, 1) as cluster:
        assert [set(offers_of(lane)) for lane in cluster.lanes] == [{"name", "port", "token"}]
    monkeypatch.setattr(sealed, "load", lambda: None)
    with thread_cluster(tmp_path / "slow", 1, 1, security="curve") as cluster:
        assert [set(offers_of(lane)) for lane in cluster.lanes] == [{"name", "token"}]


def test_a_trainer_whose_machine_cannot_seal_stays_with_curve(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_cluster(tmp_path, 2, 2, **LANES, **CARRIERS["sealed"]) as cluster:
        monkeypatch.setattr(sealed, "load", lambda: None)
        results = cluster.train(value_dependent)
    assert_same(results, undisturbed)
    assert [result[2] for result in results] == [Counter({"zmq": 6})] * 2


def offers_of(lane: Lane) -> dict[str, Any]:
    assert lane._streams is not None
    return dict(lane._streams.offer(0) or {})


@pytest.mark.parametrize("carrier", ["unix", "sealed"])
def test_no_message_overtakes_the_ones_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: str) -> None:
    """A lane ignores what comes too early; it would be sent again a second later."""
    monkeypatch.undo()  # pieces of their full length
    heard, handle = Counter[bool](), AsyncUpdates.push

    def push(updates: AsyncUpdates, message: wire.Message) -> list[Output]:
        trainer = updates.lane.trainers[message.rank]
        heard[message.step > trainer.pushed or (message.piece > 0 and trainer.push is None)] += 1
        return handle(updates, message)

    monkeypatch.setattr(AsyncUpdates, "push", push)
    with thread_cluster(tmp_path, 1, 1, mode="async", ports_num=1, **CARRIERS[carrier]) as cluster:
        cluster.train(long_and_short_by_turns)
    assert heard[False] >= 2 * PUSHES
    assert heard[True] == 0


PUSHES = 16


def long_and_short_by_turns(ps: Session) -> None:
    """Push a table of many long pieces and a short one in every other step, else the short one alone."""
    long, short = ps.dense("long", 3 * 262_144, SGD(0.1)), ps.dense("short", 8, SGD(0.1))
    link: Any = ps._client._link
    assert wait_until(lambda: short.pull() is not None and not link._carriers.openings)
    gradients = np.ones(long.value.shape, np.float32), np.ones(8, np.float32)
    for n in ps.steps(lambda pass_, rng: range(PUSHES), 1):
        ps.push({long: gradients[0], short: gradients[1]} if n % 2 else {short: gradients[1]}, samples=1)
