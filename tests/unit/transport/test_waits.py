"""Every wait ends: for a peer that reads nothing, one that does not answer, and an ssh-agent that hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import NodeError, UnreachableError
from clusterctl.transport import Transport, command, dial, login, target
from clusterctl.transport import ssh_process as process
from support.clusters import Cluster
from support.mute import mute_server
from support.nodes import TestNode

TRUE = command("true")


@pytest.fixture
def soon_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer counts as dead after 5 s; what Linux does on its own after half a minute must not help."""
    monkeypatch.setattr(target, "DEFAULT_ALIVE", (0.25, 20))
    monkeypatch.setattr(dial, "TCP_DEAD_MS", 0)


def test_a_server_that_freezes_ends_the_connection_even_behind_a_jump_host(
    cluster: Cluster, soon_dead: None, tmp_path: Path
) -> None:
    config = tmp_path / "ssh_config"
    node, gate = (f"HostName 127.0.0.1\n Port {node.ssh_port}\n" for node in cluster.nodes[:2])
    config.write_text(f"Host node\n {node} ProxyJump gate\nHost gate\n {gate}")
    with Transport(replace(cluster.settings, ssh_config=config)) as transport:
        node0 = TestNode("node0", None, ssh_host="node")
        process = transport.open(node0, command("sh", "-c", "echo $PPID; exec cat >/dev/null"))
        server = int(process.readline(deadline_s=180))
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.raises(UnreachableError, match="lost the connection"):
                process.write(bytes(50 << 20))
            with pytest.raises(UnreachableError, match="lost the connection"):
                process.read(deadline_s=180)
        finally:
            os.kill(server, signal.SIGCONT)


@contextlib.contextmanager
def choking(port: int) -> Iterator[tuple[int, threading.Event]]:
    """A route to a port, and a function that stops it from accepting any more data. Its buffers are small."""
    choked = threading.Event()
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)

        def serve() -> None:
            local = stack.enter_context(server.accept()[0])
            remote = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            back = threading.Thread(target=copy, args=(remote, local, threading.Event()), daemon=True)
            back.start()
            copy(local, remote, choked)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], choked
        finally:
            thread.join()


def copy(source: socket.socket, sink: socket.socket, end: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not end.is_set() and (data := source.recv(4096)):
            sink.sendall(data)


def test_a_route_that_stops_accepting_data_ends_the_connection(
    cluster: Cluster, soon_dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender holds a lock that the keepalive check also needs."""

    def tcp(host: str, port: int, timeout_s: float) -> socket.socket:
        sock = real(host, port, timeout_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        return sock

    real = dial._tcp
    monkeypatch.setattr(dial, "_tcp", tcp)
    assert cluster.nodes[0].ssh_port is not None
    settings = replace(cluster.settings, strict_host_keys=False)
    with choking(cluster.nodes[0].ssh_port) as (port, choked), Transport(settings) as transport:
        process = transport.open(TestNode("node7", port), command("sh", "-c", "exec cat >/dev/null"))
        choked.set()
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.write(bytes(50 << 20))
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.read(deadline_s=180)


def test_a_command_that_reads_nothing_for_long_is_reported_and_a_slow_one_is_not(
    cluster: Cluster, transport: Transport
) -> None:
    with transport.open(cluster.nodes[0], command("sh", "-c", "head -c 8000000 >/dev/null; echo; sleep 30")) as process:
        process.write(bytes(8_000_000), stall_s=20)
        assert process.readline(deadline_s=180) == b"\n"
        with pytest.raises(NodeError, match=r"timed out after 0\.3 s"):
            process.write(bytes(30_000_000), stall_s=0.3)


@pytest.mark.parametrize(
    ("refuses", "words"), [(False, r"no answer within 0\.3 s"), (True, "(the request was refused|Channel closed)")]
)
def test_so_is_one_that_gets_its_input_before_the_server_has_replied(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, refuses: bool, words: str
) -> None:
    monkeypatch.setattr(process, "OPEN_CHANNEL_S", 0.3 if not refuses else 20)
    settings = replace(cluster.settings, strict_host_keys=False)
    with (
        mute_server(refuses=refuses) as port,
        Transport(settings) as transport,
        transport.open(TestNode("node7", port), TRUE) as running,
    ):
        with contextlib.suppress(NodeError):  # the channel may be closed already
            running.write(b"input")
        for _ in range(2):
            with pytest.raises(NodeError, match=f"did not start the command: {words}"):
                running.read(deadline_s=20)


def test_an_ssh_agent_that_hangs_is_skipped(
    cluster: Cluster, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "AGENT_S", 0.3)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent"))
        silent.listen()
        assert transport.run(cluster.nodes[0], TRUE).exit_code == 0
