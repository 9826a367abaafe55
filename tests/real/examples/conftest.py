"""Three nodes for the programs in examples/, which are run with their own conf.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import wait_until
from support.site import Site, make_site


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site("embedded", tmp_path_factory.mktemp("examples"), 3) as made:
        yield made


@pytest.fixture
def site(nodes: Site, tmp_path: Path) -> Iterator[Site]:
    nodes.directory, nodes.conf_path = tmp_path, tmp_path / "conf.py"
    yield nodes
    # An agent whose connection is gone exits on its own, but not instantly.
    wait_until(lambda: not nodes.leftovers())
    left = nodes.leftovers()
    nodes.end_everything()
    assert not left, f"processes left on the nodes: {left}"
