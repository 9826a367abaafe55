"""Four nodes of Open MPI for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.mpi.lab import Lab, lab_in, missing


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    require_mpirun()
    with lab_in(tmp_path / "work") as made:
        yield made


def require_mpirun() -> None:
    """Skip the test if this machine lacks something, or fail it if CI is set: .ci/run has installed it."""
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
