from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import fake
from support.openssh import find_sshd
from support.processes import processes_below


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which a test may start a cluster; afterwards it is down and no process of it is left."""
    path = tmp_path / "fake"
    yield path
    fake.down(path)
    assert not processes_below(path)


@pytest.fixture(params=["embedded", "ssh"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "ssh":
        find_sshd()
    return name
