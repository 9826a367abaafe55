"""Ports that are kept free for programs: shared with nobody but the program itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent.wires import free_ports
from clusterctl.agent.node.ports import Held, is_listening, take

ADDRESS = "127.0.0.1"


@pytest.fixture
def first() -> int:
    return free_ports().start


@pytest.fixture
def held(first: int) -> Iterator[Held]:
    with closing(Held(ADDRESS, first, ["a", "b"], shared=True)) as made:
        yield made


def server(port: int, *, shares: bool) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shares)
    try:
        sock.bind(("", port))
    except OSError:
        sock.close()
        raise
    sock.listen()
    return sock


def test_a_program_that_shares_can_listen_on_a_held_port_and_another_only_when_it_is_released(held: Held) -> None:
    port = held.ports["a"]
    assert not is_listening(port)
    with server(port, shares=True):
        assert is_listening(port)
    with pytest.raises(OSError, match="in use"):
        server(port, shares=False)
    held.release("a")
    server(port, shares=False).close()


@pytest.mark.parametrize("shared", [True, False])
def test_two_jobs_are_never_given_the_same_port_released_or_not(held: Held, first: int, shared: bool) -> None:
    held.release("a")
    with closing(Held(ADDRESS, first, ["a", "b"], shared=shared)) as other:
        assert not set(other.ports.values()) & set(held.ports.values())
    taken, busy = take(ADDRESS, first, 1)
    with taken[0]:
        assert taken[0].getsockname()[1] not in held.ports.values()
    assert set(held.ports.values()) <= set(busy)


def test_a_port_is_free_again_when_its_job_is_over(held: Held, first: int) -> None:
    held.close()
    with closing(Held(ADDRESS, first, ["a", "b"], shared=True)) as other:
        assert other.ports == held.ports


def test_for_a_program_that_does_not_share_ports_with_lingering_connections_are_passed_over(first: int) -> None:
    with server(first, shares=True) as listener, socket.create_connection((ADDRESS, first)) as sock:
        accepted, _ = listener.accept()
        accepted.close()  # who closes first keeps the connection's remains, here on the server's port
        assert sock.recv(1) == b""
    for shared, same in ((True, True), (False, False)):
        with closing(Held(ADDRESS, first, ["a"], shared=shared)) as made:
            assert (made.ports["a"] == first) == same


def test_when_all_ports_are_taken_it_is_said_and_nothing_is_kept() -> None:
    last = 65_535
    with closing(Held(ADDRESS, last, ["a"], shared=True)):
        with pytest.raises(OSError, match=f"no free port in {last}..{last}"):
            Held(ADDRESS, last, ["a"], shared=True)
        with pytest.raises(OSError, match="no free port"):
            take(ADDRESS, last, 1)
    with pytest.raises(OSError, match="no free port"):
        Held(ADDRESS, last, ["a", "b"], shared=True)
    Held(ADDRESS, last, ["a"], shared=True).close()
