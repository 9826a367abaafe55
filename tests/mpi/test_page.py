"""The commands of docs/openmpi.md work with the real mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import REPOSITORY, Shell, blocks, examples, missing_words
from mpi.lab import Lab

pytestmark = pytest.mark.mpi
PAGE = REPOSITORY / "docs" / "openmpi.md"


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_work_in_order(lab: Lab, tmp_path: Path) -> None:
    directory = tmp_path / "page"
    directory.mkdir()
    shell = Shell.make(directory)
    shell.env |= {**lab.environment, "HOME": shell.env["HOME"]}
    for block in blocks(PAGE, "console"):
        for example in examples(block):
            ran = shell.run(example)
            transcript = f"{PAGE.name}:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
            assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
            assert missing_words(example, ran) == [], transcript
