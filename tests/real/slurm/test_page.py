"""The commands of docs/slurm.md, run in order as a reader would run them on the login node of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.docs.pages import Example, Shell, blocks, examples, missing_words
from real.slurm.lab import Lab
from support.models import assert_same_bits, model_bits
from support.places import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
#: The page's job without Slurm.
HERE = """\
cat > here.py <<END
HOSTS = ["a", "b"]
VIA = "local"
ROOT_DIR = "$PWD/here/node{node}"
SHARDS = ["train.txt-*", "test.txt-*"]
END
clusterctl --conf here.py start workspace --num_passes=1 && clusterctl --conf here.py collect -o expected"""


def test_the_commands_of_the_page_work_and_train_the_tensors_that_this_machine_trains(lab: Lab, tmp_path: Path) -> None:
    shell = Shell.make(tmp_path)
    shell.env["SLURM_CONF"] = str(lab.conf)
    shell.env["PATH"] += ":/usr/sbin:/sbin"
    for block in blocks(ROOT / "docs/slurm.md", "console"):
        for example in examples(block):
            ran = shell.run(example)
            transcript = f"slurm.md:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
            assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
            assert missing_words(example, ran) == [], transcript
    here = shell.run(Example(HERE, ()))
    assert here.code == 0, here.err
    assert_same_bits(shell.directory / "result/model", model_bits(shell.directory / "expected/model"))
