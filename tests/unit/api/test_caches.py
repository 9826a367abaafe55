"""The cache of this account is private, whatever the umask, and however it was made."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.config.caches import private_cache


@pytest.mark.parametrize("before", [None, 0o755, 0o777, 0o500])
def test_the_cache_is_private_whatever_the_umask_and_its_mode_before(tmp_path: Path, before: int | None) -> None:
    cache = tmp_path / "deep" / "clusterctl"
    if before is not None:
        cache.mkdir(parents=True)
        cache.chmod(before)
    umask = os.umask(0)
    try:
        assert private_cache({"XDG_CACHE_HOME": str(tmp_path / "deep")}) == str(cache)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_cache_of_another_account_is_not_used_except_by_a_sudo_of_that_account(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory away")
    (tmp_path / "clusterctl").mkdir()
    os.chown(tmp_path / "clusterctl", 12345, 12345)
    mode = stat.S_IMODE((tmp_path / "clusterctl").stat().st_mode)
    cache = tmp_path / "clusterctl"
    assert not Path(private_cache({"XDG_CACHE_HOME": str(tmp_path)})).exists()
    assert stat.S_IMODE(cache.stat().st_mode) == mode, "it is left as it was"
    assert private_cache({"XDG_CACHE_HOME": str(tmp_path), "SUDO_UID": "12345"}) == str(cache)
    assert private_cache({"XDG_CACHE_HOME": str(tmp_path), "SUDO_UID": "4711"}) != str(cache)


def test_a_link_of_another_account_is_not_followed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a link away")
    (tmp_path / "own").mkdir(mode=0o755)
    cache = tmp_path / "clusterctl"
    cache.symlink_to(tmp_path / "own")
    assert private_cache({"XDG_CACHE_HOME": str(tmp_path)}) == str(cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    os.lchown(cache, 12345, 12345)
    (tmp_path / "own").chmod(0o755)
    assert not Path(private_cache({"XDG_CACHE_HOME": str(tmp_path)})).exists()
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o755, "it is left as it was"


def test_where_no_cache_can_be_made_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert private_cache({"XDG_CACHE_HOME": str(tmp_path / "file")}) == str(tmp_path / "file" / "clusterctl")


def test_a_command_makes_it_private(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text('HOSTS = ["127.0.0.1:1"]\n')
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "train.py").touch()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "clusterctl", "dispatch", "workspace"]
    subprocess.run(command, cwd=tmp_path, env=env, umask=0, capture_output=True, timeout=180, check=False)
    directory = tmp_path / "cache" / "clusterctl"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
