"""The whole program, as a user runs it, over embedded SSH servers and over real OpenSSH daemons."""

from __future__ import annotations

from collections.abc import Iterator

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


def _fresh(site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The same nodes for a test of its own: its directory, the plain conf.py, and no process left afterwards.

    The mark `nodes(2)` gives the first two of the four: every node costs, and few tests need so many.
    """
    every, mark = site.hosts, request.node.get_closest_marker("nodes")
    site.hosts = every[: mark.args[0]] if mark else every
    site.directory = request.getfixturevalue("tmp_path") / "work"
    site.directory.mkdir()
    site.conf_path = site.directory / "conf.py"
    site.conf()
    yield site
    site.hosts = every
    # An agent whose connection is gone ends by itself, but not in the same instant.
    wait_until(lambda: not site.leftovers())
    left = site.leftovers()
    site.end_everything()
    assert not left, f"processes left on the nodes: {left}"


@pytest.fixture
def site(embedded_site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _fresh(embedded_site, request)


@pytest.fixture(params=KINDS)
def any_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _fresh(request.getfixturevalue(f"{request.param}_site"), request)
