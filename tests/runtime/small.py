"""Blocks and pieces of a size that tests can afford."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

BLOCK, PART, WHOLE = 512, 1_000, 300
_SIZES = {"BLOCK_ELEMENTS": BLOCK, "PART_ELEMENTS": PART, "_WHOLE_ELEMENTS": WHOLE}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lanes, files and pushes cut tables as they do, only into blocks of 512 elements and pieces of up to 1,000."""
    import clusterctl.runtime.pserver  # noqa: F401 - so that all modules with these sizes are there
    import clusterctl.runtime.session  # noqa: F401 - the same

    for name, size in _SIZES.items():
        homes = [m for key, m in sys.modules.items() if key.startswith("clusterctl.runtime.") and hasattr(m, name)]
        assert homes, f"nothing is called {name} any more"
        for home in homes:
            monkeypatch.setattr(home, name, size)
    yield
