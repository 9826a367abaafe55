"""`init --template`: which workspace comes, and that conf.py knows its shards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import forked


def init(directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "clusterctl", "init", *argv], cwd=directory)


@pytest.mark.parametrize(
    ("argv", "program", "shards"),
    [
        ((), "neighbours.py", '["train.txt-*", "test.txt-*"]'),
        (("--template=ctr",), "model.py", '["train.npy-*", "test.npy-*"]'),
    ],
)
def test_a_template_is_copied_and_its_shards_are_named(
    tmp_path: Path, argv: tuple[str, ...], program: str, shards: str
) -> None:
    done = init(tmp_path, *argv, "new")
    assert done.returncode == 0, done.stderr
    assert f"\nSHARDS = {shards}\n" in (tmp_path / "new/conf.py").read_text()
    made = {path.name for path in (tmp_path / "new/workspace").iterdir()}
    assert {"README.md", "prepare_data.py", "train.py", program} <= made
    assert ("neighbours.py" in made) is (program == "neighbours.py")
    assert "data" not in made


def test_a_template_that_is_not_there_is_refused_by_name_and_makes_nothing(tmp_path: Path) -> None:
    done = init(tmp_path, "--template", "vision", "new")
    assert done.returncode == 2
    assert "vision" in done.stderr
    assert "ngram, ctr, torch" in done.stderr
    assert list(tmp_path.iterdir()) == []
