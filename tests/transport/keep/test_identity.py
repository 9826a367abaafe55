"""A kept connection is used only by a command that would open just the same one, and for a host that is trusted now."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import RefusedError
from clusterctl.transport import command
from clusterctl.transport.keep import place
from clusterctl.transport.keep.values import target_from_json, target_to_json
from clusterctl.transport.target import Resolver
from support.clusters import Cluster
from support.kept import Kept, connection, helpers
from support.nodes import TestNode, TestSettings


def another_key(settings: TestSettings, directory: Path) -> dict[str, Any]:
    assert settings.identity_file is not None
    copy = directory / "copy"
    shutil.copy2(settings.identity_file, copy)
    return {"identity_file": copy}


def rewritten_key(settings: TestSettings, directory: Path) -> dict[str, Any]:
    assert settings.identity_file is not None
    os.utime(settings.identity_file)
    return {}


def other_known_hosts(settings: TestSettings, directory: Path) -> dict[str, Any]:
    assert settings.known_hosts is not None
    copy = directory / "known"
    shutil.copy2(settings.known_hosts, copy)
    return {"known_hosts": copy}


def unchecked_keys(settings: TestSettings, directory: Path) -> dict[str, Any]:
    return {"strict_host_keys": False}


def other_options(settings: TestSettings, directory: Path) -> dict[str, Any]:
    config = directory / "config"
    config.write_text("Host *\n  ServerAliveInterval 7\n")
    return {"ssh_config": config}


def a_proxy(settings: TestSettings, directory: Path) -> dict[str, Any]:
    relay = directory / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    config = directory / "config"
    config.write_text(f"Host *\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    return {"ssh_config": config}


CHANGES = (another_key, rewritten_key, other_known_hosts, unchecked_keys, other_options, a_proxy)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_could_make_it_another_connection_does(
    kept: Kept, cluster: Cluster, node: TestNode, tmp_path: Path, change: Callable[..., dict[str, Any]]
) -> None:
    with kept() as transport:
        first = connection(transport, node)
    changed = change(cluster.settings, tmp_path)
    with kept(**changed) as transport:
        second = connection(transport, node)
    assert second != first
    with kept(**changed) as transport:
        assert connection(transport, node) == second


@pytest.mark.parametrize("name", place.VARIABLES)
def test_variables_that_decide_who_we_are_choose_the_helper(name: str) -> None:
    environ = dict.fromkeys(place.VARIABLES, "a")
    assert place.name_of({**environ, name: "b"}, strict=True) != place.name_of(environ, strict=True)


def test_a_helper_of_another_version_is_not_used(
    kept: Kept, keep_in: Path, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept() as transport:
        first = connection(transport, node)
    monkeypatch.setattr(place, "__version__", "0.0.1")
    with kept() as transport:
        assert connection(transport, node) != first
    assert len(helpers(keep_in)) == 2


def test_nor_is_one_of_other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = place.name_of({}, strict=True)
    (tmp_path / "code.py").write_text("")
    monkeypatch.setattr(place, "SOURCES", tmp_path)
    assert place.name_of({}, strict=True) != before


def test_a_host_whose_key_is_no_longer_known_is_refused_at_once(
    kept: Kept, cluster: Cluster, node: TestNode, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known"
    assert cluster.settings.known_hosts is not None
    shutil.copy(cluster.settings.known_hosts, known_hosts)
    with kept(known_hosts=known_hosts) as transport:
        connection(transport, node)
    known_hosts.write_text("")
    with kept(known_hosts=known_hosts) as transport, pytest.raises(RefusedError, match="is not known"):
        transport.run(node, command("true"))


def test_nor_is_one_reached_through_a_jump_host_that_is_no_longer_known(
    kept: Kept, cluster: Cluster, tmp_path: Path
) -> None:
    config, known_hosts = tmp_path / "ssh_config", tmp_path / "known"
    node, gate = (f"HostName 127.0.0.1\n Port {node.ssh_port}\n" for node in cluster.nodes[:2])
    config.write_text(f"Host node\n {node} ProxyJump gate\nHost gate\n {gate}")
    assert cluster.settings.known_hosts is not None
    lines = cluster.settings.known_hosts.read_text().splitlines(keepends=True)
    known_hosts.write_text("".join(lines))
    behind = TestNode("node0", None, ssh_host="node")
    with kept(ssh_config=config, known_hosts=known_hosts) as transport:
        first = connection(transport, behind)
    with kept(ssh_config=config, known_hosts=known_hosts) as transport:
        assert connection(transport, behind) == first
    known_hosts.write_text("".join(line for line in lines if str(cluster.nodes[1].ssh_port) not in line))
    with kept(ssh_config=config, known_hosts=known_hosts) as transport, pytest.raises(RefusedError, match="not known"):
        transport.run(behind, command("true"))


def test_a_server_survives_the_way_to_the_helper(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host inner\n  HostName 127.0.0.1\n  ProxyJump outer\nHost outer\n  HostName ::1\n  User ann\n")
    target = Resolver(replace(cluster.settings, ssh_config=config)).resolve(TestNode("node0", 2222, ssh_host="inner"))
    assert target.via is not None
    stamped = target_from_json(target_to_json(target))
    assert stamped.stamp != ""
    assert stamped.via is not None
    assert replace(stamped, stamp="", via=replace(stamped.via, stamp="")) == target
