"""Streams between hosts of a run with keys: who is admitted, which lane is accepted, what an eavesdropper sees."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.certificates import Authority
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.runtime.stream import server as server_module
from clusterctl.runtime.stream import tls
from clusterctl.runtime.stream.client import open_stream
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.server import Security, StreamServer
from clusterctl.runtime.stream.tcp import open_listener
from clusterctl.runtime.stream.tls import TlsStream
from clusterctl.runtime.stream.tokens import greeting
from tests.runtime.cluster import free_port
from tests.support.processes import wait_until

DEADLINE_S = 60.0


def keys(root: Path, authority: Authority, name: str) -> RunPaths:
    run = JobPaths(root / name).run("0001")
    run.keys.mkdir(parents=True)
    run.tls.write_text(authority.issue(name))
    run.tls_authority.write_text(authority.trusted)
    return run


class Lane:
    """The streams of a lane of node 0, and the keys of node 1, which is a member of the run as well."""

    def __init__(self, root: Path) -> None:
        authority = Authority()
        self.now = 0.0
        self.own, self.member = keys(root, authority, "node0"), keys(root, authority, "node1")
        self.stranger = keys(root, Authority(), "node2")
        self.server = server_of(self.own, lambda: self.now)
        self.messages: list[list[bytes]] = []

    def run(self) -> None:
        for _ in range(8):
            for _, frames in self.server.receive(wait=False):
                self.messages.append([bytes(frame) for frame in frames])

    def opened(self, offer: Any, run: RunPaths) -> Stream | None:
        """Return what trainer 1 gets that takes an offer with the keys of a node."""
        opening = open_stream(offer, "127.0.0.1", 1, 0.0, lambda: tls.open_context(run, server=False))
        stream: Stream | None = None

        def is_settled() -> bool:
            nonlocal stream
            self.run()
            stream = opening.advance(1.0) if opening is not None else None
            return opening is None or stream is not None

        with contextlib.suppress(OSError):
            assert wait_until(is_settled, DEADLINE_S)
        if stream is None and opening is not None:
            opening.close()
        return stream


def server_of(run: RunPaths, clock: Any) -> StreamServer:
    context = tls.open_context(run, server=True)
    assert context is not None
    listener = open_listener(free_port() - 500)
    return StreamServer(2, False, listener, Security(context, tls.certificate_of(run)), clock=clock)


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    lane = Lane(tmp_path)
    yield lane
    lane.server.close()


def test_a_member_with_a_token_is_admitted_and_messages_of_any_length_arrive(lane: Lane) -> None:
    stream = lane.opened(lane.server.offer(1), lane.member)
    assert isinstance(stream, TlsStream)
    assert stream.sock.version() == "TLSv1.3"
    messages = [[b"short"], [b"a", bytes(100_000), b"b"], [bytes(3_000_000)], [bytes(range(200))] * 300]
    for message in messages:
        assert stream.send(message)

    def arrived() -> bool:
        stream.flush()
        lane.run()
        return len(lane.messages) == len(messages)

    assert wait_until(arrived, DEADLINE_S, 0)
    assert lane.messages == messages
    stream.close()


def test_long_messages_are_left_to_curve(lane: Lane) -> None:
    stream = lane.opened(lane.server.offer(1), lane.member)
    assert stream is not None
    assert stream.takes([bytes(10_000), bytes(6_000)])
    assert not stream.takes([bytes(10_000), bytes(10_000)])
    stream.close()


def test_a_node_of_another_authority_is_not_admitted_and_accepts_no_lane(lane: Lane) -> None:
    assert lane.opened(lane.server.offer(1), lane.stranger) is None
    assert wait_until(lambda: lane.run() is None and lane.server.strangers == 0, DEADLINE_S)


def test_another_member_cannot_stand_in_for_the_lane_and_sees_no_token(lane: Lane) -> None:
    """As if the connection had been turned to another node: the certificate is not that in the offer."""
    offer = lane.server.offer(1)
    assert offer is not None
    impostor = server_of(lane.member, lambda: 0.0)
    seen: list[bytes] = []
    impostor._tokens.redeem = seen.append  # type: ignore[method-assign,assignment]
    impostors = impostor.offer(1)
    assert impostors is not None
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            list(impostor.receive(wait=False))

    thread = threading.Thread(target=serve)
    thread.start()
    assert lane.opened({**offer, "port": impostors["port"]}, lane.member) is None
    assert wait_until(lambda: impostor.strangers == 0, DEADLINE_S)
    over.set()
    thread.join(DEADLINE_S)
    impostor.close()
    assert seen == []


def test_a_token_is_nothing_without_tls_or_without_a_certificate(lane: Lane) -> None:
    offer = lane.server.offer(1)
    assert offer is not None
    hello = greeting(1, bytes.fromhex(offer["token"]))
    with socket.create_connection(("127.0.0.1", offer["port"]), DEADLINE_S) as sock:
        sock.sendall(hello)
        assert is_cut_off(lane, sock)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", offer["port"]), DEADLINE_S) as plain:
        sock = tls.begin(context, plain, server=False)
        with contextlib.suppress(OSError):
            wait_until(lambda: shaken(lane, sock), DEADLINE_S)
            sock.send(hello)
        assert wait_until(lambda: lane.run() is None and lane.server.strangers == 0, DEADLINE_S)
        sock.close()
    assert lane.messages == []
    stream = lane.opened(offer, lane.member)
    assert stream is not None, "the token was not used up"
    stream.close()


def shaken(lane: Lane, sock: ssl.SSLSocket) -> bool:
    lane.run()
    with contextlib.suppress(BlockingIOError):
        tls.shake_hands(sock)
        return True
    return False


def is_cut_off(lane: Lane, sock: socket.socket) -> bool:
    lane.run()
    with contextlib.suppress(ConnectionError):
        while sock.recv(4_096):  # an alert of TLS may come first
            lane.run()
    return True


def test_a_handshake_may_not_take_for_ever(lane: Lane) -> None:
    offer = lane.server.offer(1)
    assert offer is not None
    with socket.create_connection(("127.0.0.1", offer["port"]), DEADLINE_S) as sock:
        sock.sendall(b"\x16")
        assert wait_until(lambda: lane.run() is None and lane.server.strangers == 1, DEADLINE_S)
        lane.now += server_module._GREETING_S + 1
        assert is_cut_off(lane, sock)
    assert lane.server.strangers == 0


def test_a_run_with_keys_takes_no_offer_without_tls(lane: Lane) -> None:
    offer = lane.server.offer(1)
    assert offer is not None
    del offer["certificate"]
    assert lane.opened(offer, lane.member) is None


def test_without_keys_on_the_node_there_is_no_tls(tmp_path: Path) -> None:
    run = JobPaths(tmp_path).run("0001")
    assert tls.open_context(run, server=True) is None
    run.keys.mkdir(parents=True)
    for path in (run.tls, run.tls_authority):
        path.write_text("not a certificate")
    assert tls.open_context(run, server=True) is None


def test_a_trainer_without_streams_to_other_hosts_does_not_load_tls() -> None:
    code = "import sys, clusterctl.runtime.connector, clusterctl.runtime.trainer.zmq_link; print('ssl' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
