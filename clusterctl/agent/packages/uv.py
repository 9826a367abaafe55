"""Build environments with uv: this account's own, or one that `setup` sent as a wheel.

uv unpacks each wheel once into its cache below ROOT_DIR, and makes hard links of the files in every environment that
has the wheel; on another file system it copies them. It reads no configuration, no project and no network here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.file_transfer import DIGEST
from clusterctl.common.paths import META
from clusterctl.common.pip import EXACT, IsGone, environment_without_uv, find_uv, run_until_gone
from clusterctl.common.wheels import Wheel, WheelStore, pinned

OLDEST = (0, 5)
ASK_S = 30.0
CACHE = "cache"
VERSION = re.compile(rb"uv (\d+\.\d+[\w.]*)")
QUIET = ("--quiet", "--no-config", "--no-progress", "--color=never", "--offline", "--no-python-downloads")


class Uv(NamedTuple):
    """A uv that runs on this machine, and its cache."""

    path: str
    version: str
    cache: Path

    def install(self, python: Path, lock: Sequence[Wheel], store: WheelStore, is_gone: IsGone) -> str | None:
        """Install the wheels, checked against their hashes, into an environment. Return the output if uv failed.

        `python` is the environment's interpreter. `is_gone` is called while uv runs.
        """
        self.cache.mkdir(0o700, parents=True, exist_ok=True)
        os.utime(self.cache)  # its age for prune
        with tempfile.TemporaryDirectory(prefix=".", dir=store.directory) as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(pinned(lock)) + "\n")
            places = [f"--find-links={store.path(wheel).parent}" for wheel in lock]
            target = [f"--python={python}", f"--cache-dir={self.cache}", "--link-mode=hardlink", "--no-index"]
            install = ["pip", "install", *QUIET, *EXACT, *target, *places, "--requirement", str(listed)]
            return run_until_gone([self.path, *install], environment_without_uv(), lambda _: is_gone("with uv"))


def directory_of(root: Path) -> Path:
    """Return the directory of uv's cache and of the uvs that `setup` sent."""
    return root / META / "uv"


def find(root: Path) -> Uv | None:
    """Return this account's uv, or the newest one that `setup` sent, if it runs and is new enough."""
    sent = [path / "uv" for path in sorted(directory_of(root).glob("*"), key=_changed) if DIGEST.fullmatch(path.name)]
    for path in (find_uv(), *map(str, reversed(sent))):
        uv = _try(root, path) if path else None
        if uv:
            return uv
    return None


def adopt(root: Path, wheel: Wheel, store: WheelStore) -> Uv:
    """Unpack the program in a wheel of uv. Raises AgentError if it does not run here."""
    place = directory_of(root) / wheel.digest
    if not place.is_dir():
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
        try:
            _unpack(store.path(wheel), beside / "uv")
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    uv = _try(root, str(place / "uv"))
    if uv is None:
        raise AgentError(f"{wheel.file} does not run on this machine")
    return uv


def sweep(root: Path) -> None:
    """Remove the leftovers of interrupted calls. The caller must hold the lock."""
    for leftover in directory_of(root).glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            with archive.open(name) as source, target.open("xb") as f:
                shutil.copyfileobj(source, f)
    except (zipfile.BadZipFile, StopIteration, EOFError) as exc:
        raise AgentError(f"{wheel.name} is not a wheel of uv: {exc}") from exc
    target.chmod(0o755)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _try(root: Path, path: str) -> Uv | None:
    command = [path, "--version"]
    try:
        done = subprocess.run(
            command,
            env=environment_without_uv(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.match(done.stdout)
    if done.returncode or not match:
        return None
    version = match[1].decode()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        return None
    return Uv(path, version, directory_of(root) / CACHE)
