"""Strangers who connect without authenticating take no resources from the members of a run."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead import server
from clusterctl.agent.supervisor.launcher import MOST_FILES, allow_open_files
from clusterctl.runtime.wire import sockets
from unit.agent.wires import LIMIT_S, Follower, Keys, Lead, run_until

STRANGERS = 300


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_lead_keeps_its_descriptors_in_a_flood_of_connections_and_a_supervisor_still_gets_in(tmp_path: Path) -> None:
    keys, loop = Keys(tmp_path), EventLoop()
    leader = Lead(loop, keys)
    leader.lead.send({"do": "hello"})
    before = open_descriptors()
    with ExitStack() as crowd:
        for _ in range(STRANGERS):
            crowd.enter_context(socket.create_connection(("127.0.0.1", leader.port)))
        follower = Follower(loop, keys.of(1), leader.port)
        follower.lead.send({"do": "hello"})
        run_until(loop, lambda: follower.ordered() == ["spawn"])
        taken = open_descriptors() - before - STRANGERS
        assert STRANGERS > taken > 0
        assert taken < server.SPARE_CONNECTIONS + 10
    follower.lead.let_go()
    for connection in [*leader.lead._connections.values(), *leader.lead._strangers]:
        connection.close()
    leader.listener.close()


def test_a_pserver_disconnects_clients_that_do_not_authenticate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_HANDSHAKE_MS", 50)
    context = sockets.open_context()
    router = sockets.open_router(context, {"secret": zmq.curve_keypair()[1].decode()})
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as stranger:
        while stranger.recv(1 << 10):  # its greeting, then the end of the stream
            pass
    router.close()
    context.term()


@pytest.fixture
def few_files() -> Iterator[int]:
    """Limit open files to 1,024, as a login does; restore the limit afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_run_may_open_as_many_files_as_its_account(few_files: int) -> None:
    allow_open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == few_files
    assert soft == (MOST_FILES if hard == resource.RLIM_INFINITY else max(1024, min(hard, MOST_FILES)))
