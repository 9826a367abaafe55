"""Ports that are reserved for programs, and shared with no process except the program itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.agent.node.ports import (
    NoFreePortError,
    ReservedPorts,
    find_taken,
    is_listening,
    kind_of,
    listen,
    take,
)
from clusterctl.agent.operations import start
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import JobPaths
from support.addresses import alone
from unit.agent.wires import free_ports

ADDRESS = "127.0.0.1"


@pytest.fixture
def first() -> int:
    return free_ports().start


@pytest.fixture
def held(first: int) -> Iterator[ReservedPorts]:
    with closing(ReservedPorts(ADDRESS, first, ["a", "b"], shared=True)) as made:
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


def test_a_program_that_shares_ports_can_listen_on_a_reserved_one_and_others_only_after_its_release(
    held: ReservedPorts,
) -> None:
    port = held.ports["a"]
    assert not is_listening(port)
    with server(port, shares=True):
        assert is_listening(port)
    with pytest.raises(OSError, match="in use"):
        server(port, shares=False)
    held.release("a")
    server(port, shares=False).close()


@pytest.mark.parametrize("shared", [True, False])
def test_two_jobs_never_get_the_same_port_whether_it_was_released_or_not(
    held: ReservedPorts, first: int, shared: bool
) -> None:
    held.release("a")
    with closing(ReservedPorts(ADDRESS, first, ["a", "b"], shared=shared)) as other:
        assert not set(other.ports.values()) & set(held.ports.values())
    taken, busy = take(ADDRESS, first, 1)
    with taken[0]:
        assert taken[0].getsockname()[1] not in held.ports.values()
    assert set(held.ports.values()) <= set(busy)


def test_ports_of_other_jobs_and_servers_are_found_taken_and_no_port_stays_held(
    held: ReservedPorts, first: int
) -> None:
    with server(first + 5, shares=True):
        assert {*held.ports.values(), first + 5} <= {*find_taken(ADDRESS, first)}  # other programs may have some, too
    after = find_taken(ADDRESS, first)
    assert {*held.ports.values()} <= {*after}
    assert first + 5 not in after
    assert find_taken(ADDRESS, 65_535) in ([], [65_535])


def test_ports_with_lingering_connections_are_skipped_for_a_program_that_does_not_share(first: int) -> None:
    """A program binds the port of every address: what lingers at another one is in its way, too."""
    with server(first, shares=True) as listener, socket.create_connection(("127.0.0.77", first)) as sock:
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first keeps the lingering connection: here, the server's port
        assert sock.recv(1) == b""
    for shared, same in ((True, True), (False, False)):
        with closing(ReservedPorts(ADDRESS, first, ["a"], shared=shared)) as made:
            assert (made.ports["a"] == first) == same


def test_when_all_ports_are_taken_an_error_is_raised_and_no_port_is_held() -> None:
    last = 65_535
    with alone("last-ports"):
        with closing(ReservedPorts(ADDRESS, last, ["a"], shared=True)):
            with pytest.raises(OSError, match=f"no free port in {last}..{last}"):
                ReservedPorts(ADDRESS, last, ["a"], shared=True)
            with pytest.raises(OSError, match="no free port"):
                take(ADDRESS, last, 1)
        with pytest.raises(OSError, match="no free port"):
            ReservedPorts(ADDRESS, last, ["a", "b"], shared=True)
        ReservedPorts(ADDRESS, last, ["a"], shared=True).close()


SUPERVISOR = """
import json, os, sys
with os.fdopen(int(sys.argv[5]), "w") as report:
    json.dump({"error": "whatever it says"} | json.loads(open(sys.argv[2] + "/answer").read()), report)
"""


@pytest.mark.parametrize(("answer", "kind"), [({"kind": "refused"}, "refused"), ({}, "node")])
def test_a_start_is_refused_by_the_kind_of_its_supervisors_error_and_not_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, str], kind: str
) -> None:
    job = JobPaths(tmp_path)
    job.log.mkdir()
    (tmp_path / "entry.py").write_text(SUPERVISOR)
    (tmp_path / "answer").write_text(json.dumps(answer))
    monkeypatch.setattr(start, "ENTRY", str(tmp_path / "entry.py"))
    with (tmp_path / "lock").open("w") as lock, pytest.raises(AgentError, match="whatever it says") as caught:
        start._launch(job.run("0001"), lock.fileno())
    assert caught.value.kind == kind


def test_only_taken_ports_make_a_start_refuse() -> None:
    port = free_ports().start
    with socket.create_server(("0.0.0.0", port)), pytest.raises(NoFreePortError) as caught:
        listen("127.0.0.1", range(port, port + 1))
    assert [kind_of(exc) for exc in (caught.value, OSError("no free port in 1..2"))] == ["refused", "node"]
