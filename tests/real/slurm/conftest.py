"""One Slurm for all tests of a worker, for each kind of tracking. Each test begins with idle nodes and no jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from real.slurm.lab import Lab, missing, slurm


@pytest.fixture(scope="session")
def linuxproc() -> Iterator[Lab]:
    _require()
    with slurm() as made:
        yield made


@pytest.fixture(scope="session")
def cgroups() -> Iterator[Lab]:
    _require()
    with slurm("cgroup") as made:
        yield made


@pytest.fixture
def lab(linuxproc: Lab) -> Iterator[Lab]:
    yield linuxproc
    linuxproc.clean()


@pytest.fixture
def cgroup_lab(cgroups: Lab) -> Iterator[Lab]:
    yield cgroups
    cgroups.clean()


def _require() -> None:
    """Skip the test if this machine lacks something, or fail it if CI is set: .ci/run has installed it."""
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
