"""Many nodes use a bounded number of threads and file descriptors, and a busy sshd does not lose a node."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from clusterctl.transport import Transport, command, dial
from support.clusters import make_cluster
from support.nodes import TestNode

TRUE = command("true")
CONNECTIONS = 8
WORKERS = 4


def test_threads_and_descriptors_do_not_grow_with_the_nodes(tmp_path: Path) -> None:
    threads: list[int] = []
    files: list[int] = []

    def work(node: TestNode) -> int:
        code = transport.run(node, TRUE).exit_code
        threads.append(threading.active_count())
        files.append(len(list(Path("/proc/self/fd").iterdir())))
        return code

    with (
        make_cluster("embedded", tmp_path, 40) as cluster,
        Transport(cluster.settings, max_connections=CONNECTIONS, max_handshakes=4) as transport,
    ):
        before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
        outcomes = transport.map(cluster.nodes, work, max_workers=WORKERS)
        assert [outcome.value for outcome in outcomes] == [0] * 40
        assert transport.run(cluster.nodes[0], TRUE).exit_code == 0, "its connection is reestablished"
    # Each worker may use some in addition to the connections kept; listing the descriptors takes one more.
    assert max(threads) - before[0] <= CONNECTIONS + 2 * WORKERS
    assert max(files) - before[1] <= CONNECTIONS + 2 * WORKERS


def test_a_connection_on_loan_is_kept_beyond_the_limit_although_nothing_runs_over_it(tmp_path: Path) -> None:
    with make_cluster("embedded", tmp_path, 3) as cluster, Transport(cluster.settings, max_connections=1) as transport:
        lent, others = transport.link(cluster.nodes[0]), cluster.nodes[1:]
        for node in others:
            assert transport.run(node, TRUE).exit_code == 0
            assert lent.connection.is_active()
        lent.close()
        assert transport.run(others[0], TRUE).exit_code == 0
        assert not lent.connection.is_active(), "it was given back, and idle longest"


def test_all_connections_succeed_with_an_sshd_that_rejects_most_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connect sixteen times to one server, which takes two at a time, then drops half, and all beyond four."""
    made: list[str] = []
    real = dial._tcp

    def tcp(host: str, port: int, timeout_s: float) -> socket.socket:
        made.append(host)
        return real(host, port, timeout_s)

    monkeypatch.setattr(dial, "_tcp", tcp)
    with make_cluster("openssh", tmp_path, 1, "MaxStartups 2:50:4") as cluster:
        nodes = []
        for index in range(16):
            identity = tmp_path / f"key{index}"  # this distinguishes the connections
            identity.symlink_to(str(cluster.settings.identity_file))
            nodes.append(TestNode(f"node{index}", cluster.nodes[0].ssh_port, identity=identity))
        with Transport(cluster.settings) as transport:
            outcomes = transport.map(nodes, lambda node: transport.run(node, TRUE).exit_code)
    assert [outcome.value for outcome in outcomes] == [0] * 16
    assert len(made) > 16, "no connection was rejected"
