"""Groups of three nodes: embedded servers and real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.fabric import Group, group
from support.clusters import KINDS, Cluster, make_cluster

MakeGroup = Callable[..., Group]


@pytest.fixture(scope="session", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster(request.param, tmp_path_factory.mktemp(f"fabric-{request.param}"), 3) as made:
        yield made


@pytest.fixture
def make_group(cluster: Cluster, tmp_path: Path) -> Iterator[MakeGroup]:
    """Return a function that makes a group from settings; by default of the three nodes."""
    with ExitStack() as stack:

        def make(**settings: object) -> Group:
            hosts = [f"{node.ssh_host}:{node.ssh_port}" for node in cluster.nodes]
            paths = {"SSH_CONFIG": cluster.settings.ssh_config, "IDENTITY_FILE": cluster.settings.identity_file}
            values = {"HOSTS": hosts, **paths, "KNOWN_HOSTS": cluster.settings.known_hosts, **settings}
            plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
            conf = tmp_path / "conf.py"
            conf.write_text("".join(f"{name} = {value!r}\n" for name, value in plain.items()))
            return stack.enter_context(group(conf))

        yield make


@pytest.fixture
def nodes(make_group: MakeGroup) -> Group:
    return make_group()


@pytest.fixture
def remote(cluster: Cluster, tmp_path: Path) -> str:
    """The path of a file on the nodes. SFTP of embedded servers stays in the home of the node."""
    return "remote" if cluster.kind == "embedded" else str(tmp_path / "remote")
