"""Passphrases and passwords: entered once for all nodes, by a person at a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from clusterctl.errors import UnreachableError
from clusterctl.transport import Transport, command
from support.clusters import Cluster, make_cluster
from support.nodes import TestNode, TestSettings
from support.openssh import make_key
from support.person import Person, on_terminal, read_until

TRUE = command("true")


class Guard(paramiko.ServerInterface):
    """Accepts anyone who knows the password."""

    def __init__(self, password: str) -> None:
        self._password = password

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if password == self._password else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=_end, args=(channel,)).start()
        return True


def _end(channel: paramiko.Channel) -> None:
    channel.recv(1)  # the end of its input, which follows our reply to the request
    channel.send_exit_status(0)
    with contextlib.suppress(EOFError):  # the client may leave once it has the exit status
        channel.close()


@contextlib.contextmanager
def guarded(*passwords: str) -> Iterator[list[TestNode]]:
    """Servers, one for each password, as nodes."""
    key = paramiko.ECDSAKey.generate()
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in passwords]
    transports: list[paramiko.Transport] = []

    def serve(server: socket.socket, password: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                transport = paramiko.Transport(server.accept()[0])
                transports.append(transport)
                transport.add_server_key(key)
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=Guard(password), event=threading.Event())

    threads = [threading.Thread(target=serve, args=pair) for pair in zip(servers, passwords, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield [TestNode(f"node{n}", server.getsockname()[1], ssh_user="ann") for n, server in enumerate(servers)]
    finally:
        for server in servers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
        for thread in threads:
            thread.join(180)
        for transport in transports:
            transport.close()


@pytest.fixture
def keyless(tmp_path: Path) -> TestSettings:
    config = tmp_path / "ssh_config"
    config.write_text("")
    return TestSettings(config, make_key(tmp_path / "other"), None, strict_host_keys=False)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster("openssh", tmp_path_factory.mktemp("sshd"), 3) as made:
        yield made


@pytest.fixture
def locked(sshd: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestSettings:
    """The nodes accept a key that needs a passphrase and is in no agent."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = make_key(tmp_path / "locked", passphrase="secret words")
    with (sshd.directory / "client.pub").open("a") as authorized:
        authorized.write(key.with_suffix(".pub").read_text())
    return replace(sshd.settings, identity_file=key)


def test_one_passphrase_unlocks_a_key_for_all_nodes(sshd: Cluster, locked: TestSettings) -> None:
    person = Person("wrong", "secret words")
    with Transport(locked, ask=person) as transport:
        assert all(outcome.ok for outcome in transport.map(sshd.nodes, lambda node: transport.run(node, TRUE)))
    prompt = f"Passphrase for {locked.identity_file}: "
    assert person.asked == [prompt, f"Wrong passphrase. {prompt}"]


def test_a_wrong_passphrase_is_asked_for_once_and_reported(sshd: Cluster, locked: TestSettings) -> None:
    person = Person(None)
    with Transport(locked, ask=person) as transport:
        outcomes = transport.map(sshd.nodes, lambda node: transport.run(node, TRUE))
    assert len(person.asked) == 1
    assert all("is encrypted" in str(outcome.error) for outcome in outcomes)


def test_one_password_serves_all_hosts_of_a_user(keyless: TestSettings) -> None:
    person = Person("wrong", "open sesame")
    with guarded("open sesame", "open sesame", "open sesame") as nodes, Transport(keyless, ask=person) as transport:
        outcomes = transport.map(nodes, lambda node: transport.run(node, TRUE))
    assert [outcome.error for outcome in outcomes] == [None, None, None]
    assert len(person.asked) == 2
    assert person.asked[0].startswith("Password for ann@127.0.0.1:")
    assert person.asked[1].startswith("Permission denied. Password for ann@127.0.0.1:")


def test_for_a_host_with_another_password_the_prompt_names_the_host(keyless: TestSettings) -> None:
    with guarded("one", "two") as nodes:
        person = Person("one", "two")
        with Transport(keyless, ask=person, max_handshakes=1) as transport:
            assert transport.run(nodes[0], TRUE).exit_code == 0
            assert transport.run(nodes[1], TRUE).exit_code == 0
    assert [f":{node.ssh_port}: " in prompt for node, prompt in zip(nodes, person.asked, strict=True)] == [True, True]


def test_a_wrong_password_is_asked_for_three_times(keyless: TestSettings) -> None:
    person = Person("a", "b", "c", "right")
    with guarded("right", "right") as nodes, Transport(keyless, ask=person) as transport:
        outcomes = transport.map(nodes, lambda node: transport.run(node, TRUE))
    assert len(person.asked) == 3
    assert all("the password was not accepted" in str(outcome.error) for outcome in outcomes)


def test_nobody_waits_for_a_person_who_is_typing(sshd: Cluster, locked: TestSettings, keyless: TestSettings) -> None:
    """The connection to be unlocked uses no handshake slot, and its deadline does not run."""
    asked, reached = threading.Event(), threading.Event()

    def person(prompt: str, stop: threading.Event) -> str:
        asked.set()
        assert reached.wait(180)
        return "secret words"

    free = replace(sshd.nodes[1], identity=sshd.settings.identity_file)
    with Transport(locked, ask=person, max_handshakes=1, connect_timeout_s=5) as transport:
        transport.run(free, TRUE)
        thread = threading.Thread(target=lambda: transport.run(sshd.nodes[0], TRUE))
        thread.start()
        assert asked.wait(180)
        assert transport.run(free, TRUE).exit_code == 0
        assert transport._pool()._dialer._slots.acquire(timeout=180), "a handshake is held while someone types"
        transport._pool()._dialer._slots.release()
        reached.set()
        thread.join(180)
        assert not thread.is_alive()


def test_without_a_terminal_there_is_no_prompt(sshd: Cluster, locked: TestSettings, keyless: TestSettings) -> None:
    with Transport(locked) as transport, pytest.raises(UnreachableError, match="is encrypted"):
        transport.run(sshd.nodes[0], TRUE)
    with (
        guarded("x") as nodes,
        Transport(keyless) as transport,
        pytest.raises(UnreachableError, match="denied the login"),
    ):
        transport.run(nodes[0], TRUE)


def conf(directory: Path, settings: TestSettings, sshd: Cluster) -> Path:
    path = directory / "conf.py"
    hosts = [f"127.0.0.1:{node.ssh_port}" for node in sshd.nodes]
    values = {
        "HOSTS": hosts, "SSH_CONFIG": settings.ssh_config, "IDENTITY_FILE": settings.identity_file,
        "KNOWN_HOSTS": settings.known_hosts,
    }  # fmt: skip
    path.write_text("".join(f"{k} = {v if isinstance(v, list) else str(v)!r}\n" for k, v in values.items()))
    return path


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_person_at_a_terminal_types_it_without_echo(
    sshd: Cluster, locked: TestSettings, tmp_path: Path, interrupt: bool
) -> None:
    program = "import sys, termios; from clusterctl.cli.app import run; before = termios.tcgetattr(0); " + (
        "code = run(sys.argv[1:]); print('same' if termios.tcgetattr(0) == before else 'changed', code, flush=True)"
    )
    conf_path = conf(tmp_path, locked, sshd)
    pid, terminal = on_terminal(
        sys.executable, "-c", program, "--conf", str(conf_path), "exec", "--fold", "--", "echo", "in"
    )
    try:
        seen = read_until(terminal, b"Passphrase for ")
        seen = read_until(terminal, b": ", seen)
        os.write(terminal, b"\x03" if interrupt else b"secret words\n")
        seen = read_until(terminal, b"same 130" if interrupt else b"same 0", seen)
        assert b"secret words" not in seen
        assert seen.count(b"Passphrase for ") == 1
        assert (b"--- node[0-2]\r\nin\r\n" in seen) is not interrupt
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
