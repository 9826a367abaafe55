"""One laboratory for all tests. Each begins with all machines on, a working network, and no leftover processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.faults import runs
from real.faults.laboratory import Laboratory, laboratory
from real.faults.machines import enough_rights
from support.processes import wait_until


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """The laboratory. Without root, skip the test, or fail it if CI is set."""
    if reason := enough_rights():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with laboratory(tmp_path_factory.mktemp("laboratory")) as made:
        yield made


@pytest.fixture(scope="session")
def expected(machines: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> runs.Model:
    """The model of an undisturbed run."""
    machines.directory = tmp_path_factory.mktemp("undisturbed")
    machines.conf_path = machines.directory / "conf.py"
    run = runs.start(machines)
    run.succeeds()
    return runs.model_of(machines, run.job)


@pytest.fixture
def lab(machines: Laboratory, tmp_path: Path) -> Iterator[Laboratory]:
    machines.boot()
    machines.directory, machines.conf_path = tmp_path, tmp_path / "conf.py"
    machines.conf()
    yield machines
    machines.heal_network()
    for machine in machines.machines:
        machine.free_disk()
    # An agent whose connection is gone exits on its own, but not immediately.
    wait_until(lambda: not machines.leftovers())
    left = machines.leftovers()
    machines.end_everything()
    assert not left, f"processes left on the machines: {left}"
