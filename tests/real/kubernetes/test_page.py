"""The commands of docs/kubernetes.md work in order, and train what they train on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.docs.pages import Shell, blocks, examples, missing_words
from real.kubernetes.lab import Lab
from support.models import assert_same_bits, model_bits
from support.places import ROOT

pytestmark = pytest.mark.kubernetes
PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_work_and_train_the_tensors_that_this_machine_trains(lab: Lab, tmp_path: Path) -> None:
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
    lab.directory = shell.directory
    lab.environment["HOME"] = shell.env["HOME"]
    lab.conf('["a", "b"]', VIA="local", ROOT_DIR="~/here/node{node}", SHARDS=["train.txt-*", "test.txt-*"])
    lab.ok("start", "workspace", "--num_passes=1")
    lab.ok("collect", "-o", "here")
    assert_same_bits(shell.directory / "results/model", model_bits(shell.directory / "here/model"))
