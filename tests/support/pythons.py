"""Interpreters that lack pip or venv, or borrow pip from another one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

WITHOUT = ("site-packages", "dist-packages", "ensurepip", "venv", "__pycache__")
ABOUT = "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), sep='\\n')"


def bare_python(directory: Path, like: str) -> Path:
    """Make a copy of an interpreter without pip, venv and ensurepip."""
    output = subprocess.run([like, "-I", "-c", ABOUT], capture_output=True, text=True, check=True).stdout
    executable, library = map(Path, output.split())
    ours = directory / "lib" / library.name
    ours.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name not in WITHOUT:
            (ours / entry.name).symlink_to(entry)
    (directory / "bin").mkdir()
    return Path(shutil.copy(executable, directory / "bin" / "python3"))


def lend_pip(uv: Path, lender: str, index: Path) -> None:
    """Write a stand-in for uv that runs another interpreter's pip and fails unless it is given the index."""
    uv.parent.mkdir(parents=True, exist_ok=True)
    uv.write_text(
        f'#!/bin/sh\n[ "$1 $2 $UV_NO_INDEX $UV_FIND_LINKS" = "tool run 1 {index}" ] || exit 9\n'
        f'while [ "$1" != pip ]; do shift; done\nexec {lender} -m "$@"\n'
    )
    uv.chmod(0o755)
