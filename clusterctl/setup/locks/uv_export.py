"""Export a uv.lock as a pylock.toml, with the uv of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from clusterctl.common.pip import find_uv
from clusterctl.errors import ConfigError

FIRST = "0.6.15"  # the first uv that exports this format
EXPORT = ("export", "--frozen", "--no-default-groups", "--no-emit-project", "--format", "pylock.toml")
QUIETLY = ("--offline", "--no-header", "--no-progress", "--color=never")
LIMIT_S = 120.0
MOST_CHARS = 500


def export(lock: Path) -> bytes:
    """Return the pylock.toml of the project beside a uv.lock: no extras, no dependency groups, not the project itself.

    The lock stays as it is, and is not compared with pyproject.toml. Raises ConfigError.
    """
    elsewhere = f"run this where it is, and delete {lock.name}: uv {' '.join(EXPORT)} -o pylock.toml"
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else find_uv()
    if uv is None:
        hint = f"install uv {FIRST} or later on this machine, or {elsewhere}"
        raise ConfigError(f"cannot read {lock}: found no uv on this machine", hint=hint)
    code, out, err = _run([uv, *EXPORT, *QUIETLY], lock.parent)
    if code == 0:
        return out
    version = _version(uv)
    if version is not None and version < Version(FIRST):
        hint = f"install uv {FIRST} or later: {uv} self update, or pip install -U uv; or {elsewhere}"
        raise ConfigError(f"cannot read {lock}: {uv} {version} is too old for it", hint=hint)
    about = " ".join(err.decode(errors="replace").split())[:MOST_CHARS]
    hint = f"run uv lock in {lock.parent}, beside its pyproject.toml"
    raise ConfigError(f"{lock}: uv export failed: {about or f'exit code {code}'}", hint=hint)


def _run(command: list[str], directory: Path) -> tuple[int, bytes, bytes]:
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return 127, b"", str(exc).encode()
    return done.returncode, done.stdout, done.stderr


def _version(uv: str) -> Version | None:
    found = re.match(rb"uv (\d+(?:\.\d+)*)", _run([uv, "--version"], Path("/"))[1])
    return Version(found[1].decode()) if found else None
