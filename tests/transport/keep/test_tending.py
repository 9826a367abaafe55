"""A helper tends idle agents while commands take them and leave them again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.transport import command, paramiko_loader
from clusterctl.transport.command import quote
from clusterctl.transport.connection import ask_to_run
from clusterctl.transport.keep.connections import Connections, IdleAgent, Lease
from clusterctl.transport.keep.relay import Kept
from clusterctl.transport.target import Resolver, Target
from support.clusters import Cluster
from support.nodes import TestNode
from support.processes import wait_until

ROUNDS = 300
SIZE = 300
# Reads numbers; after each comes so much data, and it says how many line feeds are in it. Blank lines are beats.
AGENT = """
import sys
for line in iter(sys.stdin.buffer.readline, b""):
    if line.strip():
        data = sys.stdin.buffer.read(int(line))
        sys.stdout.write("%d\\n" % data.count(b"\\n"))
        sys.stdout.flush()
"""


@pytest.fixture
def connections(cluster: Cluster) -> Iterator[Connections]:
    paramiko_loader.load()
    made = Connections(strict=cluster.settings.strict_host_keys, timeout_s=60, ask=lambda prompt, stop: None)
    yield made
    made.close()


@pytest.fixture
def target(cluster: Cluster, node: TestNode) -> Target:
    return Resolver(cluster.settings).resolve(node)


@pytest.fixture
def lease(connections: Connections, target: Target) -> Iterator[Lease]:
    with connections.lease(target, 60) as lease:
        yield lease


def left(connections: Connections, target: Target, lease: Lease) -> IdleAgent:
    """Start an agent and leave it to the next command, which gets it."""
    channel = lease.channel()
    ask_to_run(channel, quote(command(sys.executable, "-c", AGENT)).encode())
    connections.keep(target, "agent", lease, channel, Kept(beat=b"\n", every_s=0.0))
    return taken(connections, target, lease)


def taken(connections: Connections, target: Target, lease: Lease) -> IdleAgent:
    agent = connections.take(target, "agent", lease)
    assert agent is not None
    return agent


def line_feeds(agent: IdleAgent) -> int:
    """Return the line feeds among the data sent so far, which are beats."""
    agent.channel.sendall(b"x" * SIZE)
    return int(agent.channel.makefile().readline())


def test_an_agent_that_is_taken_while_others_are_tended_gets_no_beat(
    connections: Connections, target: Target, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = left(connections, target, lease)
    connections.keep(target, "agent", lease, agent.channel, agent.kept)
    in_use: list[IdleAgent] = []
    targets = connections._pool.targets

    def take_meanwhile() -> Any:
        if not in_use:
            in_use.append(agent)
            taken(connections, target, lease)
            agent.channel.sendall(b"%d\n" % SIZE)
        return targets()

    monkeypatch.setattr(connections._pool, "targets", take_meanwhile)
    connections.tend()
    assert in_use
    assert line_feeds(agent) == 0


def test_an_agent_is_not_taken_before_its_beat_was_sent(connections: Connections, target: Target, lease: Lease) -> None:
    agent = left(connections, target, lease)
    connections.keep(target, "agent", lease, agent.channel, agent.kept)
    (idle,) = connections._idle.values()
    got: list[IdleAgent] = []
    with idle.turn:
        taking = threading.Thread(target=lambda: got.append(taken(connections, target, lease)))
        taking.start()
        assert wait_until(lambda: not connections._idle)
        taking.join(0.5)
        assert got == []
    taking.join()
    assert got == [idle]


def test_an_agent_that_was_left_stays_before_its_first_command_has_ended(
    connections: Connections, target: Target, lease: Lease
) -> None:
    agent = left(connections, target, lease)
    connections.keep(target, "agent", lease, agent.channel, agent.kept)
    connections.tend()
    assert taken(connections, target, lease).channel is agent.channel


@pytest.mark.slow
def test_agents_are_tended_and_taken_at_the_same_time(connections: Connections, target: Target, lease: Lease) -> None:
    agent = left(connections, target, lease)
    connections.keep(target, "agent", lease, agent.channel, agent.kept)
    is_over = threading.Event()

    def tend() -> None:
        while not is_over.is_set():
            connections.tend()

    tending = threading.Thread(target=tend)
    tending.start()
    try:
        for _ in range(ROUNDS):
            agent = taken(connections, target, lease)
            agent.channel.sendall(b"%d\n" % SIZE)
            assert line_feeds(agent) == 0
            connections.keep(target, "agent", lease, agent.channel, agent.kept)
    finally:
        is_over.set()
        tending.join()
