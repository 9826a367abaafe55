"""The workspace of `init --template torch`, as far as it needs no torch. torch_api/test_template.py trains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.templates import copy_workspace

FILES = {"README.md", "model.py", "prepare_data.py", "requirements.txt", "sample.py", "train.py"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("torch") / "workspace"
    copy_workspace(target, "torch")
    return target


def prepare(workspace: Path, *argv: str) -> str:
    command = [sys.executable, "prepare_data.py", *argv]
    return subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=180, check=True).stdout


def paragraphs(path: Path) -> list[str]:
    return re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))


def test_init_writes_it_and_names_the_next_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterctl", "init", "--template", "torch", "new"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "new/workspace").iterdir()} == FILES
    assert "# SHARDS = []\n" in (tmp_path / "new/conf.py").read_text()  # every trainer gets the whole text
    assert "next: cd new && python3 workspace/prepare_data.py, then clusterctl dispatch" in done.stdout


def test_it_writes_the_same_text_each_time_and_none_of_the_test_text_is_in_the_training_text(
    workspace: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        assert "train.txt and test.txt" in prepare(workspace, "--out", str(tmp_path / name))
    for name in ("train.txt", "test.txt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    train, test = (paragraphs(tmp_path / "one" / name) for name in ("train.txt", "test.txt"))
    assert len(train) > 1000
    assert not {*train} & {*test}
    assert 0.08 < len(test) / (len(train) + len(test)) < 0.12


def test_its_readme_names_all_of_its_files(workspace: Path) -> None:
    readme = (workspace / "README.md").read_text()
    assert {path.name for path in workspace.iterdir()} == FILES
    assert {name for name in FILES if f"| `{name}` |" in readme} == FILES - {"README.md"}
