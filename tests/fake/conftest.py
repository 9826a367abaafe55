from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import fake
from support.openssh import find_sshd
from support.processes import processes_below


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a test may bring up a cluster; it is down again afterwards whatever happens, and nothing of it runs."""
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
