"""The keys of a run and an event loop, for tests that use real sockets."""

from __future__ import annotations

import pytest

from clusterctl.agent.event_loop import EventLoop
from unit.agent.wires import Keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("other"))


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()
