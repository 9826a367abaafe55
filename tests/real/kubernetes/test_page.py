"""The commands of docs/kubernetes.md work in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.docs.pages import Shell, blocks, examples, missing_words
from real.kubernetes.lab import Lab
from support.places import ROOT

pytestmark = pytest.mark.kubernetes
PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_work(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    shell = Shell.make(tmp_path / "page")
    shell.env |= {name: value for name, value in lab.environment.items() if name.startswith("KUBE")}
    shell.env["PATH"] = f"{shell.env['PATH']}:{lab.environment['PATH']}"
    for block in blocks(PAGE, "console"):
        assert block.is_run
        for example in examples(block):
            ran = shell.run(example)
            transcript = f"line {block.line}: $ {ran.command}\n{ran.out}{ran.err}"
            assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
            assert missing_words(example, ran) == [], transcript
    assert lab.is_empty()
