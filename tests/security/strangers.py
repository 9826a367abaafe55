"""Another user of the same machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can run commands as another user"
)


def as_stranger(*argv: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command as the user nobody."""
    return subprocess.run(
        argv, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=False, timeout=60
    )


def in_stranger(work: Callable[[], bool]) -> bool:
    """Return what `work` returns in a child process that runs as the user nobody."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


@contextmanager
def shared_directory(mode: int) -> Iterator[Path]:
    """A directory that all users can reach, like a node's scratch disk."""
    directory = Path(tempfile.mkdtemp(prefix="clusterctl-security-"))
    try:
        directory.chmod(mode)
        assert as_stranger("ls", str(directory)).returncode == 0
        yield directory
    finally:
        rmtree(directory)


def open_to_strangers(directory: Path) -> list[str]:
    """Return all paths below a directory that the user nobody can read, write or list."""
    listing = as_stranger(
        "find", str(directory), "-mindepth", "1", "(", "-readable", "-o", "-writable", "-o", "-executable", ")"
    )
    return listing.stdout.decode().splitlines()
