from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import fake


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a test may bring up a cluster; it is down again afterwards whatever happens."""
    path = tmp_path / "fake"
    yield path
    fake.down(path)
