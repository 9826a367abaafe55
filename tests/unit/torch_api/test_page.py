"""The programs of docs/torch.md work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contract.docs.pages import Block, blocks
from support.places import ROOT

pytestmark = pytest.mark.engines

ALL = blocks(ROOT / "docs" / "torch.md", "python")
PROGRAMS = [block for block in ALL if "load_model" not in block.body]  # test_models.py has a model to load


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"line {block.line}")
def test_a_program_of_the_page_works(block: Block, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block.body)
    command = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
