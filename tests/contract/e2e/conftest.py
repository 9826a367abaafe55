"""Fixtures that run the whole program as a user does, over embedded SSH servers and over real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import clusterctl
from support.site import Site, fresh, make_site


@pytest.fixture(scope="session")
def embedded_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("embedded", tmp_path_factory.mktemp("embedded")) as made:
        yield made


@pytest.fixture(scope="session")
def openssh_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("openssh", tmp_path_factory.mktemp("openssh")) as made:
        yield made


@pytest.fixture
def site(embedded_site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    with fresh(embedded_site, request) as made:
        yield made


@pytest.fixture
def cluster(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[clusterctl.Cluster]:
    """The Python API over the nodes of `site`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    with clusterctl.Cluster.from_conf(site.conf_path) as opened:
        yield opened


@pytest.fixture(params=["embedded", pytest.param("openssh", marks=pytest.mark.slow)])
def any_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with fresh(request.getfixturevalue(f"{request.param}_site"), request) as made:
        yield made
