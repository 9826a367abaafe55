"""Files with properties that a dispatch does not keep are named once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.dispatch import scan


def make_sparse(path: Path, size: int) -> None:
    with path.open("wb") as f:
        f.write(b"x")
        f.truncate(size)


def test_an_ordinary_workspace_has_no_warnings(tmp_path: Path) -> None:
    top = tmp_path / "workspace"
    (top / "shared").mkdir(parents=True)
    (top / "shared").chmod(0o2775)
    (top / "large").write_bytes(b"x" * 3_000_000)
    make_sparse(top / "a little sparse", 500_000)
    (tmp_path / "elsewhere").write_text("x")
    os.link(tmp_path / "elsewhere", top / "linked")
    assert scan(top).warnings == ()


def test_special_bits_of_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tool").touch()
    (tmp_path / "tool").chmod(0o4755)
    assert scan(tmp_path).warnings == ("warning: setuid, setgid and sticky bits are not kept: tool",)


def test_further_names_of_a_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("x")
    for number in range(1, 6):
        os.link(tmp_path / "0", tmp_path / f"{number}")
    assert scan(tmp_path).warnings == ("warning: hard links arrive as separate files: 1, 2, 3 and 2 more",)


def test_sparse_files_are_named_unless_they_are_ignored(tmp_path: Path) -> None:
    make_sparse(tmp_path / "hole", 3_000_000)
    if (tmp_path / "hole").stat().st_blocks * 512 > 1_000_000:
        pytest.skip("this file system makes no holes")
    assert scan(tmp_path).warnings == ("warning: sparse files arrive without holes: hole",)
    (tmp_path / ".clusterctlignore").write_text("hole\n")
    assert scan(tmp_path).warnings == ()
