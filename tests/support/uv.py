"""The uv of the development extras, and stand-ins for it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


def real_uv() -> str:
    """Return the path of uv; skip the test without it."""
    path = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if path is None:
        pytest.skip("needs uv, which the extra `dev` has")
    return path


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
