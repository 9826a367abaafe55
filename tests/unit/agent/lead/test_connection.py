"""Messages between supervisors: delivered exactly once and in order, over real TLS connections."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead import connection
from clusterctl.agent.lead.channel import Channel, parse_frame
from clusterctl.agent.lead.connection import LeadConnection
from clusterctl.transfer.tls import run_context
from unit.agent.wires import Ends, Keys, in_order, run_until


@pytest.fixture
def ends(loop: EventLoop, keys: Keys) -> Iterator[Ends]:
    made = Ends(loop, keys.of(0), keys.of(1))
    yield made
    made.close()


# Channel: the state that outlives a connection.


def test_the_lead_answers_with_the_time_of_the_last_frame_that_has_one() -> None:
    supervisor, lead = Channel("node1"), Channel()
    assert "e" not in lead.heartbeat()
    lead.accept(supervisor.heartbeat(5.5))
    lead.accept(supervisor.wrap({"do": "hello"}))
    assert lead.heartbeat()["e"] == lead.wrap({"do": "stop"})["e"] == 5.5
    assert "t" not in supervisor.heartbeat()


@pytest.mark.parametrize("line", [b"[]", b'{"a": 0, "s": 1}', b'{"a": 0, "s": "1", "m": {}}'])
def test_a_line_that_is_no_frame_is_refused(line: bytes) -> None:
    assert parse_frame(b'{"a": 0, "s": 1, "m": {}, "later": 1}')["m"] == {}
    with pytest.raises(ValueError, match=r"must be|is missing|without a message"):
        parse_frame(line)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), connections=st.integers(1, 8))
def test_all_messages_arrive_once_and_in_order_wherever_connections_break(
    seed: int, count: int, connections: int
) -> None:
    """Each connection delivers a prefix of what it was given, in both directions; the last one delivers everything."""
    rng = random.Random(seed)
    sides = Channel(), Channel()
    received: tuple[list[int], list[int]] = ([], [])
    sent = [0, 0]
    for number in range(connections):
        last = number == connections - 1
        streams = [list(side.repeat()) for side in sides]
        for side in (0, 1):
            more = count - sent[side] if last else rng.randint(0, count - sent[side])
            streams[side] += [sides[side].wrap({"n": sent[side] + n}) for n in range(more)]
            streams[side] += [sides[side].heartbeat()]
            sent[side] += more
        for side in (0, 1):
            complete = len(streams[side])
            for frame in streams[side][: complete if last else rng.randint(0, complete)]:
                message = sides[1 - side].accept(frame)
                if message is not None:
                    received[1 - side].append(message["n"])
    assert received == (list(range(count)), list(range(count)))


# Connection: one TLS connection.


def test_each_side_learns_the_others_node_from_its_certificate(loop: EventLoop, ends: Ends) -> None:
    run_until(loop, lambda: len(ends.opened) == 2)
    assert ends.opened == {"server": 1, "client": 0}


def test_megabytes_go_both_ways_at_once(loop: EventLoop, ends: Ends) -> None:
    text = "x" * 300_000
    for n in range(10):
        for end in ends.connections.values():
            end.send({"a": 0, "n": n, "text": text})
    run_until(loop, lambda: all(len(frames) == 10 for frames in ends.frames.values()))
    assert all(in_order(frames) == list(range(10)) for frames in ends.frames.values())
    assert all(end.idle() for end in ends.connections.values())


def test_the_other_side_is_notified_of_a_close_once(loop: EventLoop, ends: Ends) -> None:
    run_until(loop, lambda: len(ends.opened) == 2)
    ends.connections["client"].close()
    ends.connections["client"].close()
    run_until(loop, lambda: ends.closed["server"])
    ends.connections["server"].send({"a": 0, "n": 1})
    assert ends.closed["client"] == [None]
    assert [type(error) for error in ends.closed["server"]] == [ConnectionResetError]


def test_frames_keep_their_order_when_an_answer_is_sent_between_them(loop: EventLoop, ends: Ends) -> None:
    """A frame that arrives while the first of two is being answered waits for its turn."""
    run_until(loop, lambda: len(ends.opened) == 2)
    server, client = ends.connections["server"], ends.connections["client"]
    received: list[int] = []

    def answer(frame: dict[str, int]) -> None:
        received.append(frame["n"])
        if frame["n"] == 1:
            client.send({"a": 0, "n": 3})
            server.send({"a": 0, "n": 0})

    server.on_frame = answer
    client._outgoing += b'{"a": 0, "n": 1}\n{"a": 0, "n": 2}\n'  # in one piece, as a busy network delivers them
    client._pump()
    run_until(loop, lambda: len(received) == 3)
    assert received == [1, 2, 3]


@pytest.mark.parametrize("liar", ["server", "client"])
def test_a_certificate_of_another_authority_is_refused(
    loop: EventLoop, keys: Keys, other_keys: Keys, liar: str
) -> None:
    """With TLS 1.3, a client may briefly believe it is connected, but nothing it sends is accepted."""
    run_keys = {"server": keys.of(0), "client": keys.of(1), liar: other_keys.of(1)}
    ends = Ends(loop, run_keys["server"], run_keys["client"])
    ends.connections["client"].send({"a": 0, "n": 1})
    run_until(loop, lambda: ends.closed["server"] and ends.closed["client"])
    assert ends.frames == {"server": [], "client": []}
    assert "server" not in ends.opened


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.0\r\n\r\n", b""])
def test_a_stranger_that_connects_is_disconnected(loop: EventLoop, keys: Keys, noise: bytes) -> None:
    ours, stranger = socket.socketpair()
    ours.setblocking(False)
    closed: list[OSError | None] = []
    opened: list[int] = []
    tls = run_context(keys.of(0), server=True).wrap_socket(ours, server_side=True, do_handshake_on_connect=False)
    LeadConnection(loop, tls, lambda opened_connection, node: opened.append(node), lambda frame: None, closed.append)
    with stranger:
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        run_until(loop, lambda: closed)
    assert isinstance(closed[0], OSError)
    assert opened == []


GARBAGE = [
    b"not json\n",
    b"x" * 300_000,
    b"{}\n",
    b'{"a": 0, "s": 1}\n',
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:20]))
def test_garbage_from_a_member_closes_its_connection(
    loop: EventLoop, ends: Ends, garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_FRAME", 200_000)
    run_until(loop, lambda: len(ends.opened) == 2)
    ends.connections["client"]._outgoing += garbage
    ends.connections["client"]._pump()
    run_until(loop, lambda: ends.closed["server"])
    assert ends.frames["server"] == []


# The event loop below it.


def test_a_socket_closed_by_anothers_callback_is_not_called(loop: EventLoop) -> None:
    """Two sockets are ready at once, and the first callback closes the other socket."""
    calls: list[int] = []
    pairs = [socket.socketpair() for _ in range(2)]

    def turn(number: int) -> None:
        calls.append(number)
        for ours, _ in pairs:
            loop.unwatch(ours)
            ours.close()

    for number, (ours, theirs) in enumerate(pairs):
        loop.watch(ours, lambda number=number: turn(number))  # type: ignore[misc]
        theirs.send(b"!")
    try:
        run_until(loop, lambda: calls)
    finally:
        for _, theirs in pairs:
            theirs.close()
    assert len(calls) == 1
