from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from clusterctl.errors import InterruptedRun, NodeError, UnreachableError
from clusterctl.transport import Transport, command, dial
from support.clusters import KINDS, Cluster, make_cluster
from support.nodes import TestNode
from support.openssh import free_port
from support.processes import wait_until


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_node_hides_none_of_the_others(kind: str, tmp_path: Path) -> None:
    with make_cluster(kind, tmp_path, 6) as cluster, Transport(cluster.settings) as transport:
        nodes = list(cluster.nodes)
        nodes[5] = TestNode("node5", free_port())
        outcomes = transport.map(nodes, lambda node: transport.run(node, command("sh", "-c", "echo $SSH_CONNECTION")))
    assert [outcome.node for outcome in outcomes] == nodes
    assert [number for number, outcome in enumerate(outcomes) if not outcome.ok] == [5]
    assert isinstance(outcomes[5].error, UnreachableError)
    ports = [int(outcome.get().stdout.split()[3]) for number, outcome in enumerate(outcomes) if number != 5]
    assert ports == [node.ssh_port for number, node in enumerate(nodes) if number != 5]
    assert all(outcome.seconds < 30 for outcome in outcomes)


def test_outcomes_keep_the_order_of_the_nodes_whichever_finishes_first(cluster: Cluster) -> None:
    def work(node: TestNode) -> str:
        time.sleep(0.2 if node is cluster.nodes[0] else 0)
        return node.label

    with Transport(cluster.settings) as transport:
        assert [outcome.get() for outcome in transport.map(cluster.nodes, work)] == [
            node.label for node in cluster.nodes
        ]
        assert transport.map([], work) == []


def test_work_that_takes_too_long_is_an_error_and_does_not_hold_up_the_others(cluster: Cluster) -> None:
    over = threading.Event()

    def work(node: TestNode) -> str:
        if node is cluster.nodes[0]:
            assert over.wait(180)
        return node.label

    with Transport(cluster.settings) as transport:
        try:
            late, *others = transport.map(cluster.nodes, work, max_workers=1, limit_s=2.0)
        finally:
            over.set()
    assert late.error is not None
    assert late.error.details["reason"] == "deadline"
    assert [outcome.get() for outcome in others] == [node.label for node in cluster.nodes[1:]]


def test_no_more_workers_run_than_allowed(cluster: Cluster) -> None:
    running: list[int] = []
    most: list[int] = []
    lock, full = threading.Lock(), threading.Event()

    def work(node: TestNode) -> None:
        with lock:
            running.append(1)
            most.append(len(running))
            if len(running) == 3:
                full.set()
        assert full.wait(180)
        time.sleep(0.05)  # in which a fourth one would come
        with lock:
            running.pop()

    with Transport(cluster.settings) as transport:
        transport.map(cluster.nodes * 4, work, max_workers=3)
    assert max(most) == 3


def test_a_local_failure_is_an_outcome_of_its_node(cluster: Cluster, tmp_path: Path) -> None:
    def work(node: TestNode) -> bytes:
        return (tmp_path / node.label).read_bytes()

    (tmp_path / "node1").write_bytes(b"there")
    with Transport(cluster.settings) as transport:
        outcomes = transport.map(cluster.nodes, work)
    assert [outcome.ok for outcome in outcomes] == [False, True, False]
    assert isinstance(outcomes[0].error, NodeError)
    assert outcomes[0].error.node == "node0"
    with pytest.raises(NodeError, match="No such file"):
        outcomes[0].get()


def test_a_bug_in_the_program_is_raised_after_all_workers_have_ended(cluster: Cluster) -> None:
    ended: list[str] = []

    def work(node: TestNode) -> None:
        if node is cluster.nodes[0]:
            raise KeyError("mistake")
        time.sleep(0.2)
        ended.append(node.label)

    with Transport(cluster.settings) as transport, pytest.raises(KeyError):
        transport.map(cluster.nodes, work)
    assert sorted(ended) == ["node1", "node2"]


def test_an_interrupt_ends_running_work_and_nothing_more_is_started(cluster: Cluster) -> None:
    started: list[str] = []
    errors: list[BaseException] = []

    def work(node: TestNode) -> None:
        started.append(node.label)
        try:
            transport.run(node, command("sleep", "30"), deadline_s=180)
        except BaseException as exc:
            errors.append(exc)
            with pytest.raises(InterruptedRun):
                transport.run(node, command("true"))
            raise

    def interrupt() -> None:
        assert wait_until(lambda: len(started) == 3)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with Transport(cluster.settings) as transport:
        for node in cluster.nodes:
            transport.run(node, command("true"))
        threading.Thread(target=interrupt).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transport.map(cluster.nodes * 3, work, max_workers=3)
        assert time.monotonic() - began < 30
        assert wait_until(lambda: len(errors) == 3)
        assert len(started) == 3
        assert transport.run(cluster.nodes[0], command("true")).exit_code == 0, "it remains usable"


def test_an_interrupt_ends_handshakes_with_silent_hosts(cluster: Cluster) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Transport(cluster.settings, connect_timeout_s=60) as transport,
    ):
        node = TestNode("node9", silent.getsockname()[1])

        def interrupt() -> None:
            silent.accept()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transport.map([node], lambda node: transport.run(node, command("true")))
        thread.join()
        assert time.monotonic() - began < 30
        assert wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("fan-out")])


def test_an_interrupt_ends_a_handshake_that_is_about_to_begin(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt arrives when the silent host has accepted the connection, before any byte is sent."""
    real = dial._reach

    def reach(*arguments: object) -> object:
        stream = real(*arguments)  # type: ignore[arg-type]
        transport.abort()
        return stream

    monkeypatch.setattr(dial, "_reach", reach)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Transport(cluster.settings, connect_timeout_s=60) as transport,
    ):
        with pytest.raises(InterruptedRun):
            transport.run(TestNode("node9", silent.getsockname()[1]), command("true"))
        silent.accept()[0].close()


def test_concurrent_handshakes_are_limited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most: list[int] = []
    real = dial._reach

    def counting(*arguments: object) -> object:
        running.append(1)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(dial, "_reach", counting)
    with Transport(cluster.settings, max_handshakes=2) as transport:
        outcomes = transport.map(cluster.nodes, lambda node: transport.run(node, command("true")))
    assert all(outcome.ok for outcome in outcomes)
    assert max(most) == 2


def test_connections_started_in_the_background_are_used(cluster: Cluster) -> None:
    unreachable = TestNode("node9", free_port())
    with Transport(cluster.settings) as transport:
        transport.warm_up([*cluster.nodes, unreachable])
        assert wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("warm-up")])
        connections = [future.result() for future in transport._pool()._connections.values()]
        assert len(connections) == 3
        assert all(
            outcome.ok for outcome in transport.map(cluster.nodes, lambda node: transport.run(node, command("true")))
        )
        used = [future.result() for future in transport._pool()._connections.values()]  # in order of use
        assert set(map(id, used)) == set(map(id, connections))
        with pytest.raises(UnreachableError, match="refused"):
            transport.run(unreachable, command("true"))
