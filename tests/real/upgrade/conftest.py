"""One fake cluster of the previous version for each backend; a test uses it as `old` and as `new`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from real.upgrade.versions import BACKENDS, install, old_cluster, old_site
from support.site import Site, fresh


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous version, for PYTHONPATH."""
    target = tmp_path_factory.mktemp("before")
    install(tmp_path_factory.mktemp("source"), target)
    return target


@pytest.fixture(scope="session")
def embedded_cluster(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with old_cluster(installed, "embedded", tmp_path_factory.mktemp("embedded")) as site:
        yield site


@pytest.fixture(scope="session")
def ssh_cluster(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with old_cluster(installed, "ssh", tmp_path_factory.mktemp("ssh")) as site:
        yield site


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def new(request: pytest.FixtureRequest) -> Iterator[Site]:
    """This version, on embedded nodes, or on those of `backend` if the test requests it."""
    backend = request.getfixturevalue("backend") if "backend" in request.fixturenames else "embedded"
    with fresh(request.getfixturevalue(f"{backend}_cluster"), request) as site:
        yield site


@pytest.fixture
def old(new: Site, installed: Path) -> Site:
    """The previous version, on the nodes of `new`."""
    return old_site(new, installed)
