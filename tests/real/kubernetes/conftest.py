"""A cluster for each test: it takes a moment, and pods that one test leaves would be in the way of the next.

The tests that only look at pods share them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.schedulers.kubernetes import submit
from clusterctl.schedulers.kubernetes.kubectl import Kubectl
from real.kubernetes import program
from real.kubernetes.lab import SUBMISSION, Lab, kubernetes


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


@pytest.fixture(scope="session")
def lab_with_pods(kubectl: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with kubernetes(tmp_path_factory.mktemp("pods"), kubectl) as made:
        submit.make_ready(Kubectl(made.environment), SUBMISSION, print, print)
        yield made


@pytest.fixture
def pods(lab_with_pods: Lab) -> Iterator[Lab]:
    """A cluster with eleven pods, which a test leaves as they are."""
    yield lab_with_pods
    lab_with_pods.cluster.forbidden.clear()
    lab_with_pods.cluster.cuts.clear()
