"""Logins that real OpenSSH daemons accept, as an account that exists while the test runs."""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.transport import Transport, command
from support.clusters import Cluster, make_cluster
from support.nodes import TestNode, TestSettings
from support.person import Person, on_terminal, read_until

pytestmark = pytest.mark.slow

WHO = command("id", "-un")
PASSWORD = ("UsePAM no", "PasswordAuthentication yes")
ASKED_BY_PAM = ("UsePAM yes", "PasswordAuthentication no", "KbdInteractiveAuthentication yes")
NODES = 2


class Account:
    """A local account with a secret password; it expires in case it is left behind."""

    def __init__(self) -> None:
        self.name = f"clusterctl-{os.getpid()}"
        self.password = secrets.token_hex(16)
        tomorrow = datetime.date.today() + datetime.timedelta(days=1)
        options = ["--no-create-home", "--home-dir=/", "--shell=/bin/sh", f"--expiredate={tomorrow}"]
        subprocess.run(["useradd", *options, self.name], check=True)
        try:
            subprocess.run(["chpasswd"], input=f"{self.name}:{self.password}", text=True, check=True)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        subprocess.run(["userdel", self.name], check=True)


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    if os.getuid() != 0 or not all(map(shutil.which, ("useradd", "userdel", "chpasswd"))):
        pytest.skip("needs root to create an account with a password")
    made = Account()
    yield made
    made.remove()


@contextlib.contextmanager
def daemons_for(account: Account, *options: str) -> Iterator[tuple[Cluster, list[TestNode]]]:
    """Daemons in a directory that the account can read, since they look up its keys as that account."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with make_cluster("openssh", Path(directory), NODES, *options) as cluster:
            yield cluster, [TestNode(node.label, node.ssh_port, ssh_user=account.name) for node in cluster.nodes]


def without_key(cluster: Cluster) -> TestSettings:
    return TestSettings(cluster.settings.ssh_config, None, cluster.settings.known_hosts)


def log_of(cluster: Cluster, node: int) -> str:
    return (cluster.directory / f"node{node}" / "sshd.log").read_text()


@pytest.fixture(autouse=True)
def _no_keys_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def names(settings: TestSettings, nodes: list[TestNode], person: Person) -> list[str]:
    """Return the account name on each node."""
    with Transport(settings, ask=person) as transport:
        outcomes = transport.map(nodes, lambda node: transport.run(node, WHO))
    return [outcome.get().stdout.decode().strip() for outcome in outcomes]


@pytest.mark.parametrize(
    ("options", "method"), [(PASSWORD, "password"), (ASKED_BY_PAM, "keyboard-interactive/pam")], ids=["password", "pam"]
)
def test_one_password_works_on_all_nodes(account: Account, options: tuple[str, ...], method: str) -> None:
    person = Person(account.password)
    with daemons_for(account, *options) as (cluster, nodes):
        assert names(without_key(cluster), nodes, person) == [account.name] * NODES
        assert all(f"Accepted {method} for {account.name}" in log_of(cluster, node) for node in range(NODES))
    assert len(person.asked) == 1


def test_no_daemon_gets_a_wrong_password_twice(account: Account) -> None:
    """Some servers lock the account after a few."""
    person = Person("wrong", account.password)
    with daemons_for(account, *PASSWORD) as (cluster, nodes):
        assert names(without_key(cluster), nodes, person) == [account.name] * NODES
        assert [log_of(cluster, node).count("Failed password") for node in range(NODES)] == [1] * NODES
    assert len(person.asked) == 2


def test_a_password_is_sent_if_it_is_required_after_a_key(account: Account) -> None:
    person = Person(account.password)
    both = (*ASKED_BY_PAM, "AuthenticationMethods publickey,keyboard-interactive")
    with daemons_for(account, *both) as (cluster, nodes):
        assert names(cluster.settings, nodes, person) == [account.name] * NODES
        assert f"Partial publickey for {account.name}" in log_of(cluster, 0)
    assert len(person.asked) == 1


def test_the_program_asks_at_the_terminal_and_does_not_echo_the_password(account: Account, tmp_path: Path) -> None:
    with daemons_for(account, *ASKED_BY_PAM) as (cluster, nodes):
        settings = without_key(cluster)
        conf = tmp_path / "conf.py"
        hosts = [f"{account.name}@127.0.0.1:{node.ssh_port}" for node in nodes]
        conf.write_text(
            f"HOSTS = {hosts}\nSSH_CONFIG = {str(settings.ssh_config)!r}\nKNOWN_HOSTS = {str(settings.known_hosts)!r}\n"
        )
        program = (sys.executable, "-m", "clusterctl", "--conf", str(conf), "exec", "--fold", "--", "id", "-un")
        pid, terminal = on_terminal(*program)
        try:
            seen = read_until(terminal, b"Password for ")
            os.write(terminal, account.password.encode() + b"\n")
            seen = read_until(terminal, f"--- node[0,1]\r\n{account.name}\r\n".encode(), seen)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)
    assert account.password.encode() not in seen
    assert seen.count(b"Password for ") == 1
