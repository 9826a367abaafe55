"""fabric's Connection over our connections: what it must not do to others, and where fabric's own falls short."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import invoke
import pytest

from clusterctl.errors import NodeError, UnreachableError, UsageError
from clusterctl.fabric import Connection, Group
from clusterctl.transport import link, ssh_process
from support.clusters import Cluster
from support.mute import mute_server
from support.processes import wait_until


def other(connection: Connection, nodes: Group) -> Connection:
    """Return a second connection to the same node."""
    return Connection(connection.node, nodes.cluster.transport)


def test_a_command_returns_its_output_and_a_failing_one_raises(nodes: Group) -> None:
    done = nodes[0].run("echo out; echo err >&2", hide=True)
    assert (done.stdout, done.stderr, done.exited) == ("out\n", "err\n", 0)
    assert done.connection is nodes[0]
    with pytest.raises(invoke.UnexpectedExit) as raised:
        nodes[0].run("exit 7", hide=True)
    assert raised.value.result.exited == 7
    assert nodes[0].run("kill -9 $$", hide=True, warn=True).exited == 128 + 9


@pytest.mark.parametrize("value", ["$(touch HERE)", "\\'; touch HERE; \\'", "a  b!"])
def test_the_values_of_variables_reach_the_command_and_are_never_run(nodes: Group, tmp_path: Path, value: str) -> None:
    value = value.replace("HERE", str(tmp_path / "ran"))
    assert nodes[0].run('printf %s "$A$B"', env={"A": value, "B": 7}, hide=True).stdout == f"{value}7"
    assert not (tmp_path / "ran").exists()


def test_the_name_of_a_variable_cannot_be_a_command(nodes: Group) -> None:
    with pytest.raises(UsageError, match="is not a valid environment variable name"):
        nodes[0].run("true", env={"A=1; touch x; B": "1"})


def test_a_command_gets_the_end_of_its_input_at_once(nodes: Group) -> None:
    assert nodes[0].run("cat; echo end", hide=True, timeout=180).stdout == "end\n"
    assert nodes[0].run("cat", in_stream=io.StringIO("typed"), hide=True).stdout == "typed"


def test_output_keeps_its_characters_whole(nodes: Group) -> None:
    script = "i=0; while test $i -lt 17; do i=$((i+1)); printf 'aéa%.0s' $(seq 999); done"
    assert nodes[0].run(script, hide=True).stdout == "aéa" * 999 * 17


def test_endless_output_ends_the_command(nodes: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.fabric.runner.MOST_BYTES", 1 << 20)
    with pytest.raises(NodeError, match="more than 1 MiB of output: yes"):
        nodes[0].run("yes", hide=True)
    assert nodes[0].run("echo on", hide=True).stdout == "on\n"


def test_a_terminal_can_be_asked_for(cluster: Cluster, nodes: Group) -> None:
    if cluster.kind == "openssh":
        assert nodes[0].run("tty; stty -echo", pty=True, hide=True).stdout.startswith("/dev/")
    else:
        with pytest.raises(NodeError, match="did not start the command"):
            nodes[0].run("tty", pty=True, hide=True)


def test_closing_gives_the_connection_back_and_ends_it_for_nobody(nodes: Group) -> None:
    first, second = nodes[0], other(nodes[0], nodes)
    first.run("true")
    second.run("true")
    assert first.transport is second.transport is first.client.get_transport()
    link = first.transport
    first.close()
    assert not first.is_connected
    assert link.is_active()
    second.run("true")
    with first:
        first.run("true")
        assert first.transport is link
    second.close()
    second.close()


def test_a_lost_connection_is_an_error_of_its_node_and_the_next_command_reconnects(nodes: Group) -> None:
    begun = threading.Event()

    class Watching(io.StringIO):
        def write(self, text: str) -> int:
            begun.set()
            return len(text)

    def cut() -> None:
        assert begun.wait(180)
        nodes.cluster.transport.abort()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(UnreachableError, match=r"lost the connection to .* during: echo begun") as raised:
        nodes[1].run("echo begun; exec sleep 600", out_stream=Watching())
    cutter.join()
    assert raised.value.node == "node1"
    assert nodes[1].run("echo back", hide=True).stdout == "back\n"


def test_a_time_limit_ends_the_command_and_leaves_the_connection(nodes: Group) -> None:
    nodes[0].open()
    link = nodes[0].transport
    with pytest.raises(invoke.CommandTimedOut):
        nodes[0].run("exec sleep 600", timeout=0.3)
    assert nodes[0].run("echo still", hide=True).stdout == "still\n"
    assert nodes[0].transport is link


def test_a_server_that_never_starts_a_command_is_reported(
    make_group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "OPEN_CHANNEL_S", 0.3)
    monkeypatch.setattr(ssh_process, "OPEN_CHANNEL_S", 0.3)  # of the test of the login shell, which comes first
    with mute_server() as port:
        mute = make_group(HOSTS=[f"127.0.0.1:{port}"], STRICT_HOST_KEYS=False)
        with pytest.raises(NodeError, match=r"did not start the command: no answer within 0\.3 s"):
            mute[0].run("true")
        mute.close()


def test_files_go_both_ways(nodes: Group, remote: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 1000)
    source.chmod(0o640)
    assert nodes[0].put(str(source), remote).connection is nodes[0]
    nodes[0].get(remote, str(tmp_path / "{node}" / "back"))
    back = tmp_path / "node0" / "back"
    assert back.read_bytes() == source.read_bytes()
    assert back.stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileNotFoundError):
        nodes[0].get("missing", str(tmp_path / "x"))


def fake_sudo(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / "sudo"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_sudo_never_waits_for_a_password_that_nobody_gave(nodes: Group, tmp_path: Path) -> None:
    with nodes[0].prefix(f"export PATH={tmp_path}:$PATH"):
        fake_sudo(tmp_path, 'echo "sudo: a password is required" >&2; exit 1')
        with pytest.raises(NodeError, match="sudo: a password is required: id") as raised:
            nodes[0].sudo("id", hide=True)
        assert "NOPASSWD" in str(raised.value.hint)
        fake_sudo(tmp_path, 'printf "%s," "$@"')
        assert nodes[0].sudo("id -u", hide=True).stdout == "-n,id,-u,"
        said = nodes[0].sudo("id", user="a b", env={"A": "1"}, hide=True).stdout
        assert said == "-n,--preserve-env=A,-H,-u,a b,id,"


def test_sudo_answers_with_a_password_that_was_given(cluster: Cluster, nodes: Group) -> None:
    if cluster.kind == "embedded":
        pytest.skip("fabric needs sudo in the PATH of the node")
    # sudo -S -p PROMPT COMMAND
    asking = 'printf %s "$3" >&2; read -r word; test "$word" = secret && shift 3 && exec "$@"'
    program = fake_sudo(cluster.directory / "node0" / "bin", asking)
    try:
        assert nodes[0].sudo("echo ran", password="secret", hide=True).stdout == "ran\n"
        nodes[0].config.sudo.password = "secret"
        assert nodes[0].sudo("echo ran", hide=True).stdout == "ran\n"
    finally:
        program.unlink()


def test_ports_are_forwarded_both_ways(cluster: Cluster, nodes: Group) -> None:
    if cluster.kind == "embedded":
        pytest.skip("embedded servers forward no ports")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[1]
        for forward in (nodes[0].forward_local, nodes[0].forward_remote):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            with forward(port, there), connected(port) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"ping")
                    assert accepted.recv(4) == b"ping"
    assert nodes[0].run("echo on", hide=True).stdout == "on\n"


def connected(port: int) -> socket.socket:
    """Return a connection to a port; fabric may begin to listen there a moment later."""
    client = socket.socket()
    assert wait_until(lambda: client.connect_ex(("127.0.0.1", port)) == 0)
    return client
