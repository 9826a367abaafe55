"""The lead and a supervisor on another node, connected by real TLS over loopback."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead import client, failure_detector, server
from clusterctl.agent.lead.connection import LeadConnection
from clusterctl.agent.node.ports import listen
from clusterctl.agent.supervisor import guardian
from clusterctl.common.files import write_json
from clusterctl.common.paths import RunPaths
from clusterctl.transfer.tls import run_context
from unit.agent.specs import spec_json
from unit.agent.wires import Follower, Keys, Lead, run_until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    monkeypatch.setattr(server, "RETRY_S", 0.1)
    monkeypatch.setattr(server, "COMEBACK_S", 60.0)  # however busy the machine is, a live supervisor is back by then


@pytest.fixture
def leader(loop: EventLoop, keys: Keys) -> Iterator[Lead]:
    made = Lead(loop, keys)
    yield made
    close(made)


def close(leader: Lead) -> None:
    """Close all sockets, as the kernel does when the process dies."""
    for connection in list(leader.lead._connections.values()):
        leader.lead._loop.unwatch(connection._sock)
        connection._sock.close()
    leader.lead._loop.unwatch(leader.lead._door._listener)
    leader.lead._door._listener.close()
    leader.lead._loop.unwatch(leader.listener)
    leader.listener.close()


def begin(loop: EventLoop, leader: Lead, keys: Keys, **options: float) -> Follower:
    """Return a supervisor on node 1 that has joined."""
    follower = Follower(loop, keys.of(1), leader.port, **options)
    leader.lead.send({"do": "hello"})
    follower.lead.send({"do": "hello"})
    run_until(loop, lambda: follower.ordered() == ["spawn"])
    return follower


def breaks(follower: Follower) -> None:
    connection = follower.lead._connection
    assert connection is not None
    with contextlib.suppress(OSError):
        connection._sock.shutdown(socket.SHUT_RDWR)


def test_all_messages_of_a_run_are_exchanged(loop: EventLoop, leader: Lead, keys: Keys) -> None:
    follower = begin(loop, leader, keys)
    for rank, send in ((0, leader.lead.send), (1, follower.lead.send)):
        news = {"role": "trainer", "rank": rank}
        send({"do": "running", **news})
        send({"do": "exited", "exit_code": 0, "stopping": False, **news})
        send({"do": "idle"})
    run_until(loop, lambda: "end" in follower.ordered() and leader.lead.quiet())
    assert follower.ordered() == [order["do"] for order in leader.orders] == ["spawn", "finish", "end"]
    assert leader.noted("ended")[0]["state"] == "succeeded"
    assert follower.lost == []


def test_the_first_member_leads_whatever_its_number(loop: EventLoop, keys: Keys) -> None:
    leader = Lead(loop, keys, members=(1, 2))
    stranger = Follower(loop, keys.of(0), leader.port, members=(1, 2))
    follower = Follower(loop, keys.of(2), leader.port, members=(1, 2))
    leader.lead.send({"do": "hello"})
    follower.lead.send({"do": "hello"})
    run_until(loop, lambda: follower.ordered() == [order["do"] for order in leader.orders] == ["spawn"])
    assert stranger.ordered() == []
    stranger.lead.let_go()
    follower.lead.let_go()
    close(leader)


def test_nothing_is_lost_when_the_connection_breaks_again_and_again(loop: EventLoop, leader: Lead, keys: Keys) -> None:
    follower = begin(loop, leader, keys)
    for tag in range(3):
        for n in range(20):
            follower.lead.send({"do": "failed" if tag == 2 and n == 19 else "rejoin", "message": "the last", "n": n})
        breaks(follower)
        run_until(loop, lambda: follower.lead._connection is not None and not follower.lead._channel.repeat())
    run_until(loop, lambda: follower.ordered() == ["spawn", "stop"])
    assert [order["do"] for order in leader.orders] == ["spawn", "stop"]
    assert leader.noted("phase")[-1]["cause"]["message"] == "the last"
    assert leader.noted("lost") == []


def test_a_node_that_shut_down_is_lost_within_seconds(
    loop: EventLoop, leader: Lead, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "COMEBACK_S", 1.0)
    follower = begin(loop, leader, keys)
    follower.lead.let_go()
    breaks(follower)
    run_until(loop, lambda: leader.noted("lost"))
    assert leader.noted("lost")[0]["node"] == 1
    assert "supervisor is gone" in leader.noted("lost")[0]["message"]
    assert leader.noted("phase")[-1]["phase"] == "stopping"


def test_an_unreachable_node_has_the_whole_grace_period(
    loop: EventLoop, leader: Lead, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks, and afterwards nothing answers there, not even with a refusal."""
    trials: list[int] = []

    class WithoutRoute:
        def connect(self, address: object, limit_s: float, done: Callable[[socket.socket, int], None]) -> None:
            trials.append(1)
            done(socket.socket(), errno.EHOSTUNREACH)

        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

    follower = begin(loop, leader, keys)
    monkeypatch.setattr(leader.lead, "_loop", WithoutRoute())
    monkeypatch.setattr(server, "COMEBACK_S", 0.0)
    monkeypatch.setattr(client, "RETRY_S", 2.0)
    breaks(follower)
    run_until(loop, lambda: len(trials) >= 5)
    assert leader.noted("lost") == []
    run_until(loop, lambda: follower.lead._connection is not None)
    follower.lead.send({"do": "stop_wanted"})
    run_until(loop, lambda: "stop" in follower.ordered())
    assert leader.noted("lost") == []


def test_a_silent_connection_is_replaced_and_nothing_is_lost(
    loop: EventLoop, leader: Lead, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a network outage: neither kernel knows that the other is reachable again."""
    monkeypatch.setattr(failure_detector, "SUSPECT_S", 0.5)  # before the follower is created
    follower = begin(loop, leader, keys, node_grace_s=9)
    first = leader.lead._connections[1]
    first._loop.unwatch(first._sock)
    monkeypatch.setattr(first, "_pump", lambda: None)
    follower.lead.send({"do": "failed", "message": "in time"})
    leader.orders.clear()
    run_until(loop, lambda: "stop" in follower.ordered())
    assert leader.lead._connections[1] is not first
    assert leader.noted("phase")[-1]["cause"]["message"] == "in time"
    assert leader.noted("lost") == []
    assert follower.lost == []


NONSENSE: list[dict[str, Any]] = [
    {},
    {"do": "exited", "role": "trainer", "rank": 1, "exit_code": "0", "stopping": False},
    {"do": "kept", "tag": "../..", "step": 1, "steps": []},
]


@pytest.mark.parametrize("message", NONSENSE, ids=str)
def test_a_supervisor_that_sends_nonsense_ends_the_run_and_is_named_as_the_cause(
    loop: EventLoop, leader: Lead, keys: Keys, message: dict[str, Any]
) -> None:
    follower = begin(loop, leader, keys)
    follower.lead.send(message)
    run_until(loop, lambda: "stop" in follower.ordered())
    cause = leader.noted("phase")[-1]["cause"]
    assert (cause["kind"], cause["node"]) == ("node", 1)
    assert "sent a malformed message" in cause["message"]


def bears_witness(run: RunPaths, port: int) -> threading.Thread:
    """Act as a guardian that has survived its supervisor."""
    write_json(run.spec, spec_json(members=[0, 1], lead={"host": "127.0.0.1", "port": port}))
    thread = threading.Thread(target=guardian.report_death, args=(run,))
    thread.start()
    return thread


def test_a_guardian_that_reports_the_loss_is_believed_at_once(
    loop: EventLoop, leader: Lead, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "COMEBACK_S", 600.0)
    follower = begin(loop, leader, keys)
    follower.lead.let_go()
    breaks(follower)
    witness = bears_witness(keys.of(1), leader.port)
    run_until(loop, lambda: leader.noted("lost") and not witness.is_alive())
    assert [(note["node"], note["message"]) for note in leader.noted("lost")] == [(1, "its supervisor is gone")]


def test_refused_connections_reveal_a_dead_lead_long_before_the_grace_period_ends(
    loop: EventLoop, leader: Lead, keys: Keys
) -> None:
    follower = begin(loop, leader, keys, node_grace_s=60)
    close(leader)
    began = time.monotonic()
    run_until(loop, lambda: follower.lost)
    assert time.monotonic() - began < 30
    assert follower.closed_s is not None
    assert 0 < follower.closed_s < 30
    assert "refused" in follower.lost[0]
    assert len(follower.lost) == 1


def test_a_silent_lead_is_lost_after_the_grace_period(loop: EventLoop, keys: Keys) -> None:
    """Its kernel accepts the connection, but no process answers."""
    with listen("127.0.0.1", range(22000, 30000)) as deaf:
        follower = Follower(loop, keys.of(1), deaf.getsockname()[1], node_grace_s=0.5)
        run_until(loop, lambda: follower.lost)
        follower.lead.let_go()
    assert "no message from the lead" in follower.lost[0]
    assert follower.silent_s is not None
    assert 0.5 <= follower.silent_s < 30


def test_a_supervisor_does_not_follow_the_lead_of_another_run(loop: EventLoop, leader: Lead, other_keys: Keys) -> None:
    follower = Follower(loop, other_keys.of(1), leader.port)
    run_until(loop, lambda: follower.lost)
    assert "another program has its port" in follower.lost[0]  # certain long before the grace period is over
    assert leader.lead._connections == {}


def test_a_node_that_is_not_part_of_the_run_is_turned_away(
    loop: EventLoop, leader: Lead, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 2 has keys from this authority, but this lead has only nodes 0 and 1."""
    stranger = Follower(loop, keys.of(2), leader.port)
    turned_away: list[OSError | None] = []
    closed = stranger.lead._closed

    def count(connection: LeadConnection, error: OSError | None) -> None:
        turned_away.append(error)
        closed(connection, error)

    monkeypatch.setattr(stranger.lead, "_closed", count)
    stranger.lead.send({"do": "stop_wanted"})
    run_until(loop, lambda: turned_away)
    begin(loop, leader, keys)
    assert list(leader.lead._connections) == [1]
    stranger.lead.let_go()


def test_another_node_in_place_of_the_lead_is_not_obeyed(loop: EventLoop, keys: Keys) -> None:
    with listen("127.0.0.1", range(23000, 30000)) as listener:
        follower = Follower(loop, keys.of(1), listener.getsockname()[1], node_grace_s=1.5)

        def impostor() -> None:
            sock, _ = listener.accept()
            sock.setblocking(False)
            tls = run_context(keys.of(2), server=True).wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
            connection = LeadConnection(
                loop, tls, lambda connection, node: None, lambda frame: None, lambda error: None
            )
            connection.send({"s": 1, "a": 0, "m": {"do": "stop"}})

        loop.watch(listener, impostor)
        run_until(loop, lambda: follower.lost)
        loop.unwatch(listener)
        follower.lead.let_go()
    assert follower.orders == []


def test_a_second_supervisor_of_a_node_replaces_the_first_if_that_one_is_gone(loop: EventLoop, keys: Keys) -> None:
    """The second one connects before anyone has noticed the loss.
    The consequences of the first one's end do not affect the second.
    """
    leader = Lead(loop, keys, on_trainer_loss="wait", whole=True)
    begin(loop, leader, keys).lead.let_go()
    first = leader.lead._connections[1]
    second = Follower(loop, keys.of(1), leader.port)
    second.lead.send({"do": "hello", "new": True})
    run_until(loop, second.ordered)
    assert leader.lead._connections[1] is not first
    assert first.idle()
    assert [note["node"] for note in leader.noted("lost")] == [note["node"] for note in leader.noted("rejoined")] == [1]
    assert second.ordered() == ["again"]
    second.lead.let_go()
    close(leader)


def test_a_node_whose_processes_have_moved_is_told_so_and_joins_as_a_spare(loop: EventLoop, keys: Keys) -> None:
    """It is turned away until they have moved, and what it had to say as their supervisor is not heard."""
    places = [{"node": node, "roles": ["trainer"], "cores": 1} for node in (0, 1)]
    leader = Lead(loop, keys, on_node_loss="move", node_grace_s=1.0, places=places)
    follower = begin(loop, leader, keys, node_grace_s=1.0, on_node_loss="move")
    leader.lead._lose(1)
    follower.lead.send({"do": "stop_wanted"})
    run_until(loop, lambda: follower.moved)
    assert [(event["rank"], event["node"]) for event in leader.noted("moved")] == [(1, 0)]
    assert leader.noted("rejoined") == []
    follower.lead.join_anew({"do": "hello", "new": True, "spare": True})
    run_until(loop, lambda: leader.noted("rejoined"))
    leader.lead.send({"do": "stop_wanted"})
    run_until(loop, lambda: "stop" in follower.ordered())
    assert (follower.moved, follower.lost) == (1, [])
    follower.lead.let_go()
    close(leader)
