"""Fixtures that run each test of the transport against embedded servers and real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.transport import Transport
from clusterctl.transport.keep.ending import end_helpers
from support.clusters import KINDS, Cluster, make_cluster
from support.nodes import TestNode


@pytest.fixture(scope="session", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster(request.param, tmp_path_factory.mktemp(request.param), 3) as made:
        yield made


@pytest.fixture
def keep_in(tmp_path: Path) -> Iterator[Path]:
    """A directory for the sockets of helpers, which are ended after the test."""
    directory = tmp_path / "connections"
    yield directory
    end_helpers(directory)


@pytest.fixture(params=["direct", pytest.param("kept", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest, cluster: Cluster, keep_in: Path) -> Iterator[Transport]:
    """Commands behave the same over connections of this process and over those of a helper."""
    kept = {"keep_s": 60, "keep_in": keep_in} if request.param == "kept" else {}
    with Transport(cluster.settings, **kept) as made:
        yield made


@pytest.fixture
def node(cluster: Cluster) -> TestNode:
    return cluster.nodes[0]
