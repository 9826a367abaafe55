"""Blocks and pieces small enough for tests."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

BLOCK, PART, WHOLE, OUT = 512, 1_000, 300, 2


def cut_small(monkeypatch: pytest.MonkeyPatch, part: int = PART) -> None:
    """Cut tables as usual, but into blocks of 512 elements, and pushes into pieces of up to 1,000, two at a time.

    Tables with `wire` need a `part` that is a multiple of 256.
    """
    for name in (
        "pserver.process",
        "trainer.session",
        "trainer.zmq_link",
    ):  # so that all modules with these sizes are loaded
        importlib.import_module(f"clusterctl.runtime.{name}")
    runtime: list[Any] = [module for name, module in sys.modules.items() if name.startswith("clusterctl.runtime.")]
    sizes = {"BLOCK_ELEMENTS": BLOCK, "PART_ELEMENTS": part, "_WHOLE_ELEMENTS": WHOLE, "_PIECES_OUT": OUT}
    for size, value in sizes.items():
        homes = [module for module in runtime if hasattr(module, size)]
        assert homes, f"no module has a {size} any more"
        for home in homes:
            monkeypatch.setattr(home, size, value)
