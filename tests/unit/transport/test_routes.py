"""Indirect routes to a node: ssh_config, jump hosts, proxy commands, and keys from the agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.transport import Transport, command
from clusterctl.transport.target import Resolver
from support.addresses import needs_ipv6
from support.clusters import Cluster, make_cluster
from support.nodes import TestNode, TestSettings
from support.openssh import make_key
from support.processes import wait_until

ASK = command("sh", "-c", "echo $SSH_CONNECTION")


def resolved(tmp_path: Path, text: str, **node: object) -> object:
    config = tmp_path / "ssh_config"
    config.write_text(text)
    settings = TestSettings(config, None, None)
    return Resolver(settings).resolve(TestNode("node0", **{"ssh_port": None, "ssh_host": "alpha", **node}))


def test_conf_takes_precedence_over_ssh_config(tmp_path: Path) -> None:
    text = "Host alpha\n Port 2201\n User ann\n IdentityFile ~/.ssh/special\n"
    target = resolved(tmp_path, text, ssh_port=22, ssh_user="bob", identity=tmp_path / "key")
    assert (target.port, target.user, target.identities) == (22, "bob", (tmp_path / "key",))


def test_an_include_that_includes_itself_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too deeply"):
        resolved(tmp_path, "Include ssh_config\n")


def test_a_host_key_alias_names_the_known_key(tmp_path: Path) -> None:
    assert resolved(tmp_path, "Host *\n HostKeyAlias Stable\n Port 2201\n").key_name == "stable"


def test_a_jump_host_pattern_that_matches_the_jump_host_itself_is_not_a_loop(tmp_path: Path) -> None:
    target = resolved(tmp_path, "Host *\n ProxyJump ann@gate:2200\n")
    assert (target.via.host, target.via.port, target.via.user) == ("gate", 2200, "ann")
    assert target.via.via is None


def test_a_loop_of_jump_hosts_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="through itself"):
        resolved(tmp_path, "Host alpha\n ProxyJump beta\nHost beta\n ProxyJump alpha\n")


def test_a_port_that_is_not_a_number_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port"):
        resolved(tmp_path, "Host alpha\n Port many\n")


def jump_config(cluster: Cluster, tmp_path: Path) -> Path:
    gate, *inner = cluster.nodes
    config = tmp_path / "ssh_config"
    blocks = [f"Host inner{n}\n Port {node.ssh_port}\n" for n, node in enumerate(inner)]
    config.write_text(
        f"Host gate\n HostName 127.0.0.1\n Port {gate.ssh_port}\n"
        f"{''.join(blocks)}Host inner*\n HostName 127.0.0.1\n ProxyJump gate\n"
    )
    return config


def test_a_node_is_reached_through_a_jump_host(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, ssh_config=jump_config(cluster, tmp_path))
    with Transport(settings) as transport:
        done = transport.run(TestNode("node1", None, ssh_host="inner0"), ASK)
        assert int(done.stdout.split()[3]) == cluster.nodes[1].ssh_port
        big = transport.run(TestNode("node1", None, ssh_host="inner0"), command("wc", "-c"), bytes(3_000_000))
        assert big.stdout.strip() == b"3000000"


def test_nodes_behind_one_jump_host_share_the_connection_to_it(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, ssh_config=jump_config(cluster, tmp_path))
    nodes = [TestNode(f"node{n}", None, ssh_host=f"inner{n}") for n in range(2)]
    with Transport(settings, max_handshakes=1) as transport:
        assert all(outcome.ok for outcome in transport.map(nodes, lambda node: transport.run(node, ASK)))
        assert len(transport._pool()._connections) == 3


def test_a_jump_host_that_is_down_is_named_together_with_the_node(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host inner\n ProxyJump 127.0.0.1:1\n")
    settings = replace(cluster.settings, ssh_config=config)
    with Transport(settings) as transport, pytest.raises(UnreachableError) as caught:
        transport.run(TestNode("node1", 22, ssh_host="inner"), ASK)
    assert str(caught.value) == "node1: connection to jump host 127.0.0.1:1 refused"


def test_a_node_that_its_jump_host_cannot_reach_is_named_with_the_jump_host(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, ssh_config=jump_config(cluster, tmp_path))
    with Transport(settings) as transport, pytest.raises(UnreachableError) as caught:
        transport.run(TestNode("node1", 1, ssh_host="inner0"), ASK)
    gate = f"jump host 127.0.0.1:{cluster.nodes[0].ssh_port}"
    assert f"{gate} cannot open a connection to 127.0.0.1:1" in str(caught.value)


def test_a_node_is_reached_through_a_proxy_command_which_ends_with_the_connection(
    cluster: Cluster, tmp_path: Path
) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n ProxyCommand {sys.executable} {relay} %h %p\n")
    with Transport(replace(cluster.settings, ssh_config=config)) as transport:
        assert transport.run(cluster.nodes[0], command("echo", "hi")).stdout == b"hi\n"
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(relay) not in listing


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run a separate ssh-agent, stopped afterwards."""
    sock = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL) as process:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))

        assert wait_until(sock.exists)
        yield
        process.terminate()


@pytest.mark.usefixtures("agent")
def test_an_encrypted_key_works_once_it_is_in_the_agent(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.settings.identity_file is not None
    key = tmp_path / "locked"
    key.write_bytes(Path(cluster.settings.identity_file).read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-add", "-q", key], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", key], check=True, stdout=subprocess.DEVNULL)
    settings = replace(cluster.settings, identity_file=key)
    with Transport(settings) as transport:
        assert transport.run(cluster.nodes[0], ASK).exit_code == 0


@pytest.mark.usefixtures("agent")
def test_the_agent_is_tried_after_the_named_key_unless_identities_only_is_set(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.kind == "embedded":
        pytest.skip("asyncssh ends a connection at paramiko's second request to log in")
    subprocess.run(["ssh-add", "-q", str(cluster.settings.identity_file)], check=True, stderr=subprocess.DEVNULL)
    other = make_key(tmp_path / "other")
    settings = replace(cluster.settings, identity_file=other)
    with Transport(settings) as transport:
        assert transport.run(cluster.nodes[0], ASK).exit_code == 0
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n IdentitiesOnly yes\n")
    with Transport(replace(settings, ssh_config=config)) as transport, pytest.raises(UnreachableError):
        transport.run(cluster.nodes[0], ASK)


def test_a_stale_agent_socket_is_ignored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", os.devnull)
    with Transport(cluster.settings) as transport:
        assert transport.run(cluster.nodes[0], ASK).exit_code == 0


@needs_ipv6
def test_hosts_on_the_same_machine_are_distinguished_by_port_over_ipv6_too(tmp_path: Path) -> None:
    with make_cluster("openssh", tmp_path, 2, "ListenAddress ::1") as cluster:
        known = tmp_path / "known_hosts"
        known.write_text(Path(str(cluster.settings.known_hosts)).read_text().replace("[127.0.0.1]", "[::1]"))
        nodes = [replace(node, ssh_host="::1") for node in cluster.nodes]
        with Transport(replace(cluster.settings, known_hosts=known)) as transport:
            answers = [
                outcome.get().stdout.split() for outcome in transport.map(nodes, lambda n: transport.run(n, ASK))
            ]
    assert [(answer[2], int(answer[3])) for answer in answers] == [(b"::1", node.ssh_port) for node in nodes]


@pytest.mark.slow
def test_rsa_keys_are_accepted(tmp_path: Path) -> None:
    key = make_key(tmp_path / "rsa", "rsa")
    with make_cluster("openssh", tmp_path, 1) as cluster:
        (cluster.directory / "client.pub").write_text(key.with_suffix(".pub").read_text())
        with Transport(replace(cluster.settings, identity_file=key)) as transport:
            assert transport.run(cluster.nodes[0], ASK).exit_code == 0
