"""The commands of docs/slurm.md, run in order as a reader would run them on the login node of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import REPOSITORY, Shell, blocks, examples, missing_words
from slurm.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_the_commands_of_the_page_work_in_order(lab: Lab, tmp_path: Path) -> None:
    shell = Shell.make(tmp_path)
    shell.env["SLURM_CONF"] = str(lab.conf)
    shell.env["PATH"] += ":/usr/sbin:/sbin"
    for block in blocks(REPOSITORY / "docs/slurm.md", "console"):
        for example in examples(block):
            ran = shell.run(example)
            transcript = f"slurm.md:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
            assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
            assert missing_words(example, ran) == [], transcript
