from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError, NodeError, UnreachableError
from clusterctl.transport import Transport, command, dial, target
from support.clusters import Cluster, make_cluster
from support.nodes import TestNode
from support.openssh import free_port, make_key

TRUE = command("true")


@contextlib.contextmanager
def listening(answer: bytes | None = None, *, hang_up: bool = False) -> Iterator[int]:
    """A port that accepts connections and sends nothing, sends one thing, or hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    taken.append(sock)
                    if answer:
                        sock.sendall(answer)
                    if hang_up:
                        sock.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for sock in taken:
                sock.close()


def test_a_closed_port_is_named_with_a_hint_to_check_sshd(cluster: Cluster) -> None:
    port = free_port()
    with Transport(cluster.settings) as transport, pytest.raises(UnreachableError, match="refused") as caught:
        transport.run(TestNode("node7", port), TRUE)
    assert caught.value.node == "node7"
    assert caught.value.hint == f"check that sshd is running on 127.0.0.1:{port}"


def test_a_host_name_that_does_not_resolve_is_named(cluster: Cluster) -> None:
    node = TestNode("node7", 22, ssh_host="no-such-host.invalid")
    with Transport(cluster.settings) as transport, pytest.raises(UnreachableError) as caught:
        transport.run(node, TRUE)
    assert "cannot resolve the host name no-such-host.invalid" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_host_that_listens_but_never_answers_times_out(cluster: Cluster) -> None:
    with listening() as port, Transport(cluster.settings, connect_timeout_s=1) as transport:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"no SSH response from .* within 1 s"):
            transport.run(TestNode("node7", port), TRUE)
        assert time.monotonic() - began < 30


def test_a_peer_that_is_not_an_ssh_server_is_reported_as_such(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "BACKOFF_S", 0.001)
    with (
        listening(b"220 mail ready\r\n", hang_up=True) as port,
        Transport(cluster.settings) as transport,
        pytest.raises(UnreachableError, match="hung up during the SSH handshake") as caught,
    ):
        transport.run(TestNode("node7", port), TRUE)
    assert "check that it is an SSH server" in str(caught.value.hint)


class Hangup(threading.Thread):
    """Stands in front of a server and drops the first connections before any data is sent, as MaxStartups does."""

    def __init__(self, target_port: int, drops: int) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target_port = target_port
        self._drops = drops
        self.port: int = self._server.getsockname()[1]
        self.connections = 0

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                self.connections += 1
                if self.connections <= self._drops:
                    sock.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self._target_port))
                for ends in ((sock, there), (there, sock)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("drops", "works"), [(4, True), (5, False)])
def test_a_server_that_drops_connections_is_tried_five_times(
    cluster: Cluster, node: TestNode, drops: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "BACKOFF_S", 0.001)
    assert node.ssh_port is not None
    front = Hangup(node.ssh_port, drops)
    front.start()
    settings = replace(cluster.settings, strict_host_keys=False)
    with Transport(settings) as transport:
        try:
            if works:
                assert transport.run(TestNode("node7", front.port), TRUE).exit_code == 0
            else:
                with pytest.raises(UnreachableError, match="hung up"):
                    transport.run(TestNode("node7", front.port), TRUE)
        finally:
            front.stop()
    assert front.connections == 5


def test_a_connection_lost_during_a_command_is_reported(cluster: Cluster, node: TestNode) -> None:
    assert node.ssh_port is not None
    front = Hangup(node.ssh_port, 0)
    front.start()
    settings = replace(cluster.settings, strict_host_keys=False)
    proxy_settings = TestNode("node7", front.port)
    with Transport(settings) as transport:
        process = transport.open(proxy_settings, command("sh", "-c", "echo started; exec sleep 20"))
        assert process.readline(deadline_s=180) == b"started\n"
        for connection in transport._pool()._connections.values():  # cut it silently, as a crashing machine would
            connection.result().wire.hang_up()
        with pytest.raises(UnreachableError, match="lost the connection") as caught:
            process.read(deadline_s=180)
        assert caught.value.node == "node7"
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.wait(180)
        with pytest.raises(UnreachableError, match="lost the connection"):
            process.write(b"x")
        assert transport.run(proxy_settings, TRUE).exit_code == 0, "the next command reconnects"
    front.stop()


def test_a_wrong_key_is_named_with_a_hint(cluster: Cluster, node: TestNode, tmp_path: Path) -> None:
    key = make_key(tmp_path / "other")
    settings = replace(cluster.settings, identity_file=key)
    with (
        Transport(settings) as transport,
        pytest.raises(UnreachableError, match="denied the login") as caught,
    ):
        transport.run(node, TRUE)
    assert str(key) in str(caught.value)
    assert "IDENTITY_FILE" in str(caught.value.hint)
    assert caught.value.details["reason"] == "authentication"


def test_a_missing_key_file_is_named(cluster: Cluster, node: TestNode, tmp_path: Path) -> None:
    settings = replace(cluster.settings, identity_file=tmp_path / "nowhere")
    with Transport(settings) as transport, pytest.raises(UnreachableError, match=r"cannot read .*nowhere"):
        transport.run(node, TRUE)


def test_the_error_for_an_encrypted_key_suggests_ssh_add(
    cluster: Cluster, node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = make_key(tmp_path / "locked", passphrase="secret words")
    settings = replace(cluster.settings, identity_file=key)
    with Transport(settings) as transport, pytest.raises(UnreachableError, match="is encrypted") as caught:
        transport.run(node, TRUE)
    assert caught.value.hint == f"unlock the key for this session: ssh-add {key}"


def test_a_missing_ssh_config_is_a_configuration_error(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, ssh_config=tmp_path / "none")
    with Transport(settings) as transport, pytest.raises(ConfigError, match="SSH_CONFIG"):
        transport.run(cluster.nodes[0], TRUE)


def test_paramiko_writes_nothing_to_the_terminal(
    cluster: Cluster,
    node: TestNode,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "BACKOFF_S", 0.001)
    settings = replace(cluster.settings, identity_file=make_key(tmp_path / "other"))
    with listening(b"rubbish\r\n", hang_up=True) as port, Transport(settings) as transport:
        for bad in (TestNode("node7", port), node):
            with pytest.raises(UnreachableError):
                transport.run(bad, TRUE)
    assert logging.getLogger("paramiko").propagate is False
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.slow
def test_a_silent_peer_is_noticed_and_an_idle_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "DEFAULT_ALIVE", (0.25, 20))  # a server on a busy machine replies within 5 s
    with make_cluster("openssh", tmp_path, 1) as cluster, Transport(cluster.settings) as transport:
        node = cluster.nodes[0]
        process = transport.open(node, command("sh", "-c", "echo $PPID; exec sleep 30"))
        server = int(process.readline(deadline_s=180))
        with pytest.raises(NodeError, match="timed out after"):
            process.read(deadline_s=6)  # longer than a silent peer is allowed
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.raises(UnreachableError, match="lost the connection"):
                process.read(deadline_s=180)
        finally:
            os.kill(server, signal.SIGCONT)
