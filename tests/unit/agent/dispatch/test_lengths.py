"""The longest path that a dispatch accepts is the longest that the system calls of Linux accept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent.dispatch.receive import check_lengths
from clusterctl.common.errors import AgentError
from clusterctl.common.tree import DIRECTORY, Entry


def deep(size: int) -> str:
    """Return a path of so many bytes, of names of 100 bytes and a last one of up to 200."""
    count = (size - 100) // 101
    return "/".join(["d" * 100] * count + ["e" * (size - 101 * count)])


def test_a_path_may_be_as_long_as_linux_allows_with_the_directory_above_it(tmp_path: Path) -> None:
    left = os.pathconf(tmp_path, "PC_PATH_MAX") - 1 - len(f"{tmp_path}/")
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(f"{tmp_path}/{deep(left + 1)}")
    with pytest.raises(AgentError, match=f"it has {left + 1} bytes, and {left} are left"):
        check_lengths(tmp_path, [Entry(deep(left + 1), DIRECTORY, 0o755, 0)], str(tmp_path))
    with pytest.raises(FileNotFoundError):
        os.lstat(f"{tmp_path}/{deep(left)}")
    check_lengths(tmp_path, [Entry(deep(left), DIRECTORY, 0o755, 0)], str(tmp_path))


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    most = os.pathconf(tmp_path, "PC_NAME_MAX")
    check_lengths(tmp_path, [Entry("x" * most, DIRECTORY, 0o755, 0)], str(tmp_path))
    with pytest.raises(AgentError, match=f"a name of {most + 1} bytes"):
        check_lengths(tmp_path, [Entry("x" * (most + 1), DIRECTORY, 0o755, 0)], str(tmp_path))
