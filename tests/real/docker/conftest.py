"""A cluster of containers, brought up once, and the program as a user on this machine has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from real.docker.compose import USER, Compose, compose_cluster
from support.processes import wait_until
from support.site import Site

NODES = 3
NODE_GRACE_S = 5


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("docker")


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    with compose_cluster(tmp_path_factory.mktemp("compose"), NODES) as compose:
        yield compose


@pytest.fixture
def cluster(containers: Compose) -> Iterator[Compose]:
    """A cluster with all nodes up, healthy and connected; no process of a job may be left on any node afterwards."""
    yield containers
    containers.heal()
    for node in containers.nodes:
        wait_until(lambda node=node: not node.processes())
        assert node.processes() == []


@pytest.fixture
def site(cluster: Compose, tmp_path: Path) -> Site:
    """`clusterctl` on this machine, with a conf.py and known host keys for the published ports."""
    (tmp_path / "ssh_config").touch()
    ports = {node.name: node.port for node in cluster.nodes}
    keys = [f"[127.0.0.1]:{ports[node.name]} {node.host_key}\n" for node in cluster.nodes]
    (tmp_path / "known_hosts").write_text("".join(keys))
    paths = {
        "IDENTITY_FILE": cluster.identity,
        "KNOWN_HOSTS": tmp_path / "known_hosts",
        "SSH_CONFIG": tmp_path / "ssh_config",
    }
    site = Site(tmp_path, tmp_path, [f"{USER}@127.0.0.1:{port}" for port in ports.values()], paths)
    site.conf(NODE_GRACE_S=NODE_GRACE_S, ON_NODE_LOSS="fail")
    return site
