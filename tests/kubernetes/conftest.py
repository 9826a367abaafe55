"""A cluster for each test: it takes a moment, and pods that one test leaves would be in the way of the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubernetes import program
from kubernetes.lab import Lab, kubernetes


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = program.find(tmp_path_factory.mktemp("kubectl"))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs kubectl: make kubernetes installs it")
    return found


@pytest.fixture
def lab(kubectl: Path, tmp_path: Path) -> Iterator[Lab]:
    with kubernetes(tmp_path, kubectl) as made:
        yield made
