"""Nodes relay a stream completely, only to the right nodes, and around any failure."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.relay import downstream, links, upstream
from clusterctl.agent.relay.links import DownstreamNode, Lag, RelayBroken
from clusterctl.agent.relay.relay import Relay
from clusterctl.common.paths import PACKAGE_ROOT
from unit.agent.nodes import OLDEST, needs
from unit.agent.relays import STREAM, LyingRelay, Member, Relays, read_all, reader


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that no thread or descriptor outlives a relay."""
    before = set(Path("/proc/self/fd").iterdir())
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("relay")] == []
    assert set(Path("/proc/self/fd").iterdir()) <= before


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (links, downstream):
        monkeypatch.setattr(module, "STALL_S", 0.5)
    monkeypatch.setattr(upstream, "SILENCE_S", 0.5)
    monkeypatch.setattr(upstream, "JOIN_S", 1.0)
    for module in (upstream, downstream):
        monkeypatch.setattr(module, "CALL_S", 1.0)
    monkeypatch.setattr(downstream, "BUFFERED", 256 << 10)
    monkeypatch.setattr(Lag, "ALLOWED_S", 0.3)


@pytest.mark.parametrize("count", [1, 5])
def test_every_node_gets_every_byte(count: int) -> None:
    relays = Relays(count)
    relays.run()
    assert [m.node for m in relays.members.values() if m.got != STREAM or m.broken or m.lost] == []


def test_an_empty_stream_ends_at_once() -> None:
    relays = Relays(2)
    members = [relays.start(node, b"") for node in (0, 1)]
    assert [bytes(member.relay.read(10)) for member in members] == [b"", b""]
    relays.close()


def test_a_relay_works_between_processes_in_different_pythons() -> None:
    python = needs(OLDEST)
    relays = Relays(3)
    program = (
        "import json, sys\n"
        "from clusterctl.agent.relay.relay import DownstreamNode, Keys, Relay\n"
        "relay = Relay('127.0.0.1'); print(relay.port, flush=True)\n"
        "keys, down, length = json.loads(sys.stdin.readline())\n"
        "relay.start(Keys(*keys), 'node0', [DownstreamNode(*b) for b in down], length)\n"
        "total = sum(map(len, iter(lambda: relay.read(1 << 20), b'')))\n"
        "print(total, relay.finish(), 'numpy' in sys.modules, flush=True)\n"
    )
    command = [python, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PACKAGE_ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        relays.members[1].relay.close()
        last = ["127.0.0.1", relays.members[2].relay.port, "node2", 1]
        process.stdin.write(json.dumps([relays.keys[1], [last], len(STREAM)]) + "\n")
        process.stdin.flush()
        threads = [
            threading.Thread(
                target=relays.start(0, downstream=[DownstreamNode("127.0.0.1", port, "node1", 2)]).run, args=(read_all,)
            ),
            threading.Thread(target=relays.start(2).run, args=(read_all,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process.stdout.readline() == f"{len(STREAM)} [] False\n"
    assert relays.members[2].got == STREAM


def test_nodes_behind_a_dead_one_are_notified_that_nothing_will_arrive(short_patience: None) -> None:
    relays = Relays(4, dead=(2,))
    relays.run(without=(2,))
    assert relays.members[0].got == relays.members[1].got == STREAM
    assert relays.members[1].lost == ["node2"]
    assert relays.members[3].broken == "the relay broke: node2 did not connect within 1 s"


def test_nodes_behind_one_that_dies_midway_keep_what_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "BUFFERED", 256 << 10)

    def die(member: Member) -> None:
        while len(member.got) < 1 << 20:
            member.got += member.relay.read(10_000)
        member.relay.close()

    relays = Relays(5)
    relays.run(reads={2: die})
    members = relays.members
    assert members[0].got == members[1].got == STREAM
    for node in (3, 4):
        assert members[node].broken
        assert STREAM.startswith(bytes(members[node].got))
        assert 0 < len(members[node].got) < len(STREAM)
        assert len(members[node].got) >= 1 << 19


def test_a_lying_node_is_detected_by_the_receivers_hashes_and_not_by_the_relay() -> None:
    relays = Relays(3, kinds={1: LyingRelay})
    relays.run()
    assert relays.members[1].got == STREAM
    assert relays.members[2].got == bytes(len(STREAM))


@pytest.mark.parametrize("allowed_s", [0.3, 1e6], ids=["it lags too long", "after much work"])
def test_a_node_that_reads_nothing_is_given_up_and_does_not_delay_the_nodes_before_it(
    short_patience: None, monkeypatch: pytest.MonkeyPatch, allowed_s: float
) -> None:
    monkeypatch.setattr(Lag, "ALLOWED_S", allowed_s)
    monkeypatch.setattr(Lag, "ALLOWED_MORE_S", 1.0)  # so that the first node is more patient also on a busy machine
    relays = Relays(4)
    stream = STREAM * 8  # more than all socket buffers and our own
    stuck = relays.start(2, stream)
    others = [relays.start(node, stream) for node in (0, 1)]
    threads = [threading.Thread(target=member.run, args=(read_all,)) for member in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [member.got == stream for member in others] == [True, True]
    assert [member.lost for member in others] == [[], ["node2"]]
    with pytest.raises(RelayBroken):
        read_all(stuck)
    relays.close()


def test_silence_of_the_upstream_node_is_noticed(short_patience: None) -> None:
    relays = Relays(2)
    member = relays.start(1)
    relays.start(0)
    with pytest.raises(RelayBroken, match=r"no data from node0 for 0\.5 s"):
        member.relay.read(1)
    relays.close()


def test_strangers_are_not_served_and_delay_nobody() -> None:
    relays, others = Relays(3), Relays(3)
    member = relays.start(1, downstream=[])
    port = member.relay.port
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    silent[0].sendall(b"GET / HTTP/1.0\r\n\r\n")
    refused = []
    stream = bytes(len(STREAM) * 8)  # more than all socket buffers can hold
    for keys in (others.keys[0], relays.keys[2]):  # of another dispatch; of another node
        stranger = Relay("127.0.0.1")
        stranger.start(keys, None, [DownstreamNode("127.0.0.1", port, "node1")], len(stream), reader(stream))
        refused.append(stranger.finish())
    assert refused == [["node1"], ["node1"]]
    relays.start(0)
    head = threading.Thread(target=relays.members[0].run, args=(read_all,))
    head.start()
    member.run(read_all)
    head.join()
    assert member.got == STREAM
    for sock in silent:
        sock.close()
    relays.close()
    others.close()


def test_nothing_is_sent_to_a_node_that_cannot_prove_its_name() -> None:
    relays, others = Relays(3), Relays(3)
    impostor = relays.start(1, keys=others.keys[1], downstream=[])
    head = relays.start(0)
    head.run(read_all)
    assert head.got == STREAM
    assert head.lost == ["node1"]
    impostor.relay.close()
    assert impostor.got == bytearray()
    relays.close()
    others.close()


@pytest.mark.parametrize("when", ["before the start", "midway", "after the finish"])
def test_a_relay_can_be_closed_at_any_moment(when: str) -> None:
    relays = Relays(3)
    if when != "before the start":
        for node in relays.members:
            relays.start(node)
    if when == "midway":
        relays.members[0].relay.read(1000)
    if when == "after the finish":
        relays.members[0].relay.finish()
    relays.close()
    relays.close()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_allowed_lag_is_proportional_to_the_work_and_to_the_nodes_behind() -> None:
    clock = Clock()
    lags = {nodes: Lag(nodes, clock) for nodes in (1, 2, 15)}
    before = {nodes: lag.left_s() for nodes, lag in lags.items()}
    assert before == {1: pytest.approx(2.2), 2: pytest.approx(2.4), 15: pytest.approx(5)}
    clock.now += 10
    assert {nodes: lag.left_s() - before[nodes] for nodes, lag in lags.items()} == pytest.approx({1: 10, 2: 20, 15: 30})
    clock.now += 5
    lags[1].waited(5)
    assert lags[1].left_s() == pytest.approx(before[1] + 5)
