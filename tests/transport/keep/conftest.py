"""Transports whose connections outlive them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.transport import Transport
from support.clusters import Cluster, make_cluster
from support.kept import Kept


@pytest.fixture(scope="session", params=["openssh", pytest.param("embedded", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster(request.param, tmp_path_factory.mktemp(request.param), 2) as made:
        yield made


@pytest.fixture
def kept(cluster: Cluster, keep_in: Path) -> Kept:
    """Opens a transport with a helper; arguments replace those of the settings."""

    @contextmanager
    def opened(*, keep_s: float = 120, **settings: Any) -> Iterator[Transport]:
        with Transport(replace(cluster.settings, **settings), keep_s=keep_s, keep_in=keep_in) as made:
            yield made

    return opened
