"""The whole program, as a user runs it, over embedded SSH servers and over real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import KINDS
from support.processes import wait_until
from support.site import Site, make_site


@pytest.fixture(scope="session")
def embedded_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("embedded", tmp_path_factory.mktemp("embedded")) as made:
        yield made


@pytest.fixture(scope="session")
def openssh_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("openssh", tmp_path_factory.mktemp("openssh")) as made:
        yield made


def _fresh(site: Site, directory: Path) -> Iterator[Site]:
    """The same nodes for a test of its own: its directory, the plain conf.py, and no process left afterwards."""
    directory.mkdir()
    site.directory, site.conf_path = directory, directory / "conf.py"
    site.conf()
    yield site
    # An agent whose connection is gone ends by itself, but not in the same instant.
    wait_until(lambda: not site.leftovers())
    left = site.leftovers()
    site.end_everything()
    assert not left, f"processes left on the nodes: {left}"


@pytest.fixture
def site(embedded_site: Site, tmp_path: Path) -> Iterator[Site]:
    yield from _fresh(embedded_site, tmp_path / "work")


@pytest.fixture(params=KINDS)
def any_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _fresh(request.getfixturevalue(f"{request.param}_site"), tmp_path / "work")
