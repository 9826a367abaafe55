"""Fixtures that run each test of the transport against embedded servers and real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterctl.transport import Transport
from support.clusters import KINDS, Cluster, make_cluster
from support.nodes import TestNode


@pytest.fixture(scope="session", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster(request.param, tmp_path_factory.mktemp(request.param), 3) as made:
        yield made


@pytest.fixture
def transport(cluster: Cluster) -> Iterator[Transport]:
    with Transport(cluster.settings) as made:
        yield made


@pytest.fixture
def node(cluster: Cluster) -> TestNode:
    return cluster.nodes[0]
