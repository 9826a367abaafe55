"""Make an environment from wheels: with uv, or by unpacking them. A node needs neither venv nor ensurepip nor pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clusterctl.agent.packages.uv import Uv
from clusterctl.agent.packages.venvs import Venvs
from clusterctl.agent.packages.wheel_install import InstallTarget, check_names, unpack
from clusterctl.common.errors import AgentError
from clusterctl.common.files import sync_disk, write_json
from clusterctl.common.pip import IsGone
from clusterctl.common.wheels import Wheel, WheelStore

OURSELVES = "clusterctl"
PROBLEM_CHARS = 400
TRY_S = 120.0
#: Imported to test that they work on this machine.
MODULES = {"numpy": "numpy", "pyzmq": "zmq", "cryptography": "cryptography"}


class Built(NamedTuple):
    """An environment. `builder` is what made it now, if anything did; `problem` is why uv could not."""

    name: str
    builder: str | None
    problem: str | None = None


def build(venvs: Venvs, lock: Sequence[Wheel], store: WheelStore, is_gone: IsGone, uv: Uv | None = None) -> Built:
    """Return the environment of these wheels, made now if it is absent. It appears only if it works.

    Without `uv`, or if that fails, the wheels are unpacked here. `is_gone` is called with the name of each package.
    """
    name = venvs.name_of(lock)
    if venvs.works(name):
        return Built(name, None)
    beside = Path(tempfile.mkdtemp(prefix=".", dir=venvs.directory))
    try:
        builder, problem = _install(venvs, beside, lock, store, is_gone, uv)
        _try_out(beside / "bin" / "python", lock)
        write_json(beside / "clusterctl.json", {"v": 1, "lock": [list(wheel) for wheel in lock]})
        sync_disk(beside)
        shutil.rmtree(venvs.path(name), ignore_errors=True)
        beside.rename(venvs.path(name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Built(name, builder, problem)


def _install(
    venvs: Venvs, top: Path, lock: Sequence[Wheel], store: WheelStore, is_gone: IsGone, uv: Uv | None
) -> tuple[str, str | None]:
    """Fill an environment. Return what did it, and why uv did not."""
    problem = None
    if uv:
        for wheel in lock:
            check_names(store.path(wheel))
        _make(venvs, top, relocatable=True)
        problem = uv.install(top / "bin" / "python", lock, store, is_gone)
        if problem is None:
            return f"uv {uv.version}", None
        for path in top.iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)
    target = InstallTarget(top, _make(venvs, top), str(venvs.python(venvs.name_of(lock))))
    for wheel in lock:
        is_gone(wheel.name)
        unpack(store.path(wheel), target)
    return OURSELVES, problem and problem[-PROBLEM_CHARS:]


def _make(venvs: Venvs, top: Path, *, relocatable: bool = False) -> Path:
    """Make an environment without packages, and return their directory.

    uv writes the scripts of a relocatable one so that they find their interpreter after the directory is renamed.
    """
    site = top / "lib" / f"python{venvs.minor}" / "site-packages"
    site.mkdir(parents=True)
    (top / "bin").mkdir()
    for alias in ("python", "python3", f"python{venvs.minor}"):
        (top / "bin" / alias).symlink_to(venvs.base)
    version = ".".join(map(str, sys.version_info[:3]))
    home = Path(venvs.base).parent
    lines = [f"home = {home}", "include-system-site-packages = false", f"version = {version}"]
    lines += [f"executable = {venvs.base}", *(["relocatable = true"] if relocatable else [])]
    (top / "pyvenv.cfg").write_text("\n".join(lines) + "\n")
    return site


def _try_out(python: Path, lock: Sequence[Wheel]) -> None:
    """Raise `AgentError` if the environment's interpreter cannot import the modules that training needs."""
    modules = [MODULES[wheel.name] for wheel in lock if wheel.name in MODULES]
    program = f"import {', '.join(['sys', *modules])}; sys.exit(sys.prefix == sys.base_prefix)"
    try:
        tried = subprocess.run(
            [python, "-I", "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AgentError(f"the new environment did not answer within {TRY_S:.0f} s") from None
    if tried.returncode:
        error = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2][-300:]
        raise AgentError(
            f"the new environment does not work: {error or f'exit code {tried.returncode}'}",
            hint="this version does not run on this machine: require another one in requirements.txt",
        )
