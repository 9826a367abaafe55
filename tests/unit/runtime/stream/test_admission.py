"""How a stream begins: who is admitted to a lane, who is not, and which lane a trainer accepts."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime.stream import server as server_module
from clusterctl.runtime.stream.client import PendingStream, open_stream
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.server import StreamServer
from clusterctl.runtime.stream.tcp import open_listener
from clusterctl.runtime.stream.tokens import GREETING_BYTES, answer_to, greeting
from support.processes import wait_until
from unit.runtime.cluster import free_port, is_ready

DEADLINE_S = 60.0
TRAINERS = 3
LANE = 5


class Lane:
    """The streams of one lane; `run` does what its thread would until nothing happens any more."""

    def __init__(self, carrier: str) -> None:
        self.now = 0.0
        self.refused: list[str] = []
        self.sealed = carrier == "sealed"
        self.tcp = open_listener(free_port() - 500) if carrier != "unix" else None
        refuse = self.refused.append
        self.server = StreamServer(LANE, TRAINERS, carrier == "unix", self.tcp, self.sealed, refuse, lambda: self.now)
        self.messages: list[tuple[int, list[bytes]]] = []

    def run(self) -> None:
        for _ in range(8):
            for stream, frames in self.server.receive(wait=False):
                self.messages.append((stream.rank, [bytes(frame) for frame in frames]))

    def connect(self, offer: dict[str, Any]) -> socket.socket:
        """Return a connection that says nothing."""
        if "name" in offer:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(DEADLINE_S)
            sock.connect(f"\0{offer['name']}")
        else:
            sock = socket.create_connection(("127.0.0.1", offer["port"]), DEADLINE_S)
        return sock

    def offer(self, rank: int) -> dict[str, Any]:
        offer = self.server.offer(rank)
        assert offer is not None
        return offer

    def opened(self, offer: dict[str, Any], rank: int) -> Stream | None:
        """Return what a trainer gets that takes an offer."""
        opening = open_stream(offer, "127.0.0.1", rank, LANE, 0.0, secure=self.sealed)
        assert opening is not None
        return self.complete(opening)

    def complete(self, opening: PendingStream) -> Stream | None:
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                self.run()
                stream = opening.advance(1.0)
                if stream is not None:
                    return stream
            raise AssertionError("a stream was neither accepted nor refused")
        opening.close()
        return None

    def is_open(self, sock: socket.socket) -> bool:
        """Return False if the lane has hung up by now."""
        self.run()
        if not is_ready(sock, wait_s=0):
            return True
        try:
            return sock.recv(1) != b""
        except ConnectionError:
            return False

    def hangs_up(self, sock: socket.socket) -> bool:
        """Wait until the lane hangs up."""
        return wait_until(lambda: not self.is_open(sock), DEADLINE_S)


@pytest.fixture(params=["unix", "sealed"])
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    lane = Lane(request.param)
    yield lane
    lane.server.close()


def test_a_trainer_with_a_token_is_admitted_under_its_rank(lane: Lane) -> None:
    streams = [lane.opened(lane.offer(rank), rank) for rank in range(TRAINERS)]
    for rank, stream in enumerate(streams):
        assert stream is not None
        assert stream.send([b"from", bytes([rank])])
    while len(lane.messages) < TRAINERS:
        lane.run()
    assert sorted(lane.messages) == [(rank, [b"from", bytes([rank])]) for rank in range(TRAINERS)]
    for stream in streams:
        assert stream is not None
        stream.close()


def test_a_token_is_not_sent(lane: Lane) -> None:
    offer = lane.offer(1)
    token = bytes.fromhex(offer["token"])
    assert token not in greeting(1, token) + answer_to(token)
    with lane.connect(offer) as sock:
        sock.sendall(greeting(1, token)[: -len(token)] + token)
        assert lane.hangs_up(sock)


def test_a_token_is_good_once(lane: Lane) -> None:
    offer = lane.offer(1)
    first = lane.opened(offer, 1)
    assert first is not None
    assert lane.opened(offer, 1) is None
    assert lane.is_open(first.sock), "a thief does not even end the stream of the owner"
    first.close()


def test_a_token_is_good_for_one_rank_only(lane: Lane) -> None:
    offer = lane.offer(1)
    assert lane.opened(offer, 0) is None
    assert lane.opened(offer, 2**32 - 1) is None
    stream = lane.opened(offer, 1)
    assert stream is not None
    stream.close()
    assert lane.refused == ["a stream without a good token"] * 2


def test_no_stream_is_offered_to_a_rank_that_is_not_there(lane: Lane) -> None:
    assert [lane.server.offer(rank) for rank in (-1, TRAINERS, 2**32 - 1)] == [None] * 3


def test_the_tokens_of_repeated_hellos_are_good_but_only_the_newest_are_kept(lane: Lane) -> None:
    offers = [lane.offer(0) for _ in range(100)]
    assert lane.opened(offers[0], 0) is None
    streams = [lane.opened(offer, 0) for offer in offers[-2:]]
    assert streams[0] is not None
    assert streams[1] is not None
    assert lane.hangs_up(streams[0].sock), "the newest stream of a trainer replaces the one before"
    assert lane.is_open(streams[1].sock)
    for stream in streams:
        assert stream is not None
        stream.close()


@pytest.mark.parametrize(
    "said", [bytes(GREETING_BYTES), b"GET / HTTP/1.0\r\n\r\n" + bytes(100), greeting(1, bytes(32)), b"\xff" * 1_000]
)
def test_a_stranger_is_turned_away(lane: Lane, said: bytes) -> None:
    with lane.connect(lane.offer(1)) as sock:
        sock.sendall(said)
        assert lane.hangs_up(sock)
    assert lane.refused == ["a stream without a good token"]


def test_a_connection_that_ends_before_its_greeting_is_forgotten(lane: Lane) -> None:
    offer = lane.offer(1)
    with lane.connect(offer) as sock:
        lane.run()
        sock.sendall(greeting(1, bytes.fromhex(offer["token"]))[:-1])
        lane.run()
    lane.run()
    assert lane.server.strangers == 0
    stream = lane.opened(offer, 1)
    assert stream is not None
    stream.close()


def test_a_greeting_may_come_byte_by_byte_but_not_take_for_ever(lane: Lane) -> None:
    offer = lane.offer(1)
    with lane.connect(offer) as slow, lane.connect(offer) as slower:
        lane.run()
        for number, byte in enumerate(greeting(1, bytes.fromhex(offer["token"]))):
            lane.now += server_module._GREETING_S / (2 * GREETING_BYTES)
            slow.sendall(bytes([byte]))
            lane.run()
            slower.sendall(b"C" if number % 2 else b"")
            lane.run()
            assert lane.is_open(slower)
        assert slow.recv(32, socket.MSG_WAITALL)
        lane.now += server_module._GREETING_S / 2 + 1
        assert lane.hangs_up(slower), "one byte after the other for too long"


def test_strangers_are_few_and_do_not_keep_a_trainer_out(lane: Lane) -> None:
    with contextlib.ExitStack() as crowd:
        offer = lane.offer(2)
        most = TRAINERS + server_module._MORE_STRANGERS
        for _ in range(2 * most):
            crowd.enter_context(lane.connect(offer))
            lane.run()
        assert lane.server.strangers == most
        stream = lane.opened(offer, 2)
        assert stream is not None
        stream.close()


def test_a_lane_without_descriptors_lives_on_and_accepts_again_later(lane: Lane) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    offer = lane.offer(1)
    with lane.connect(offer) as sock, lane.connect(offer) as other:
        used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        holes = [os.dup(sock.fileno()) for _ in range(used)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 1, hard))
        try:
            lane.run()
            assert lane.server.strangers == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for hole in holes:
                os.close(hole)
        lane.run()
        assert lane.server.strangers == 0, "nobody is accepted until a stream is offered again: no busy loop"
        stream = lane.opened(lane.offer(1), 1)
        assert stream is not None
        stream.close()
        assert lane.server.strangers == 2
        del other


def test_a_broken_stream_ends_alone_and_is_reported_if_its_bytes_are_wrong(lane: Lane) -> None:
    bad, good = (lane.opened(lane.offer(rank), rank) for rank in (0, 1))
    assert bad is not None
    assert good is not None
    bad.sock.sendall(struct.pack("<I", 2**31 - 1))
    assert lane.hangs_up(bad.sock)
    assert [reason for reason in lane.refused if "trainer 0" in reason]
    good.send([b"still here"])
    while not lane.messages:
        lane.run()
    assert lane.messages == [(1, [b"still here"])]
    bad.close()
    good.close()


def test_a_trainer_does_not_accept_a_lane_that_does_not_know_its_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        offer = {"port": listener.getsockname()[1], "token": "00" * 32}
        opening = open_stream(offer, "127.0.0.1", 0, LANE, 0.0)
        assert opening is not None
        while not opening.is_connected:
            opening.advance(1.0)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(bytes(32))
            with pytest.raises(ConnectionError):
                wait_until(lambda: opening.advance(1.0) is not None, DEADLINE_S)
        opening.close()


@pytest.mark.parametrize(
    "offer",
    [
        None,
        {},
        7,
        {"token": "zz", "name": "x"},
        {"token": "00" * 32},
        {"token": "00" * 32, "name": "nobody-has-this-name"},
        {"token": "00" * 32, "name": "x" * 500},
        {"token": "00" * 32, "name": 7, "port": "x"},
        {"token": "00" * 32, "port": 2**40},
        {"token": 1, "port": 1},
    ],
)
def test_an_offer_that_leads_nowhere_opens_nothing(offer: Any) -> None:
    assert open_stream(offer, "127.0.0.1", 0, LANE, 0.0) is None


def test_a_port_for_streams_is_within_those_of_the_pserver() -> None:
    port = free_port() % 60_000
    first, second = open_listener(port), open_listener(port)
    assert first is not None
    assert second is not None
    ports = [sock.getsockname()[1] for sock in (first, second)]
    assert port + 500 <= ports[0] < ports[1] < port + 1_000
    assert open_listener(65_500) is None
    first.close()
    second.close()
