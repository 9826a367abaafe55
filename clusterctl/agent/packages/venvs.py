"""Python environments of this node: named by their contents, and either complete or absent.

venvs/DIGEST/ is an environment like those of `python -m venv`, made by this module: a node needs neither venv nor
ensurepip nor pip. venvs/for/KEY names the environment for given requirements and an interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clusterctl.agent.packages.uv import Uv
from clusterctl.agent.packages.wheel_install import InstallTarget, check_names, unpack
from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, sync_disk, write_json
from clusterctl.common.paths import META
from clusterctl.common.pip import IsGone
from clusterctl.common.requirements import RUNTIME, RUNTIME_BEFORE, digest, of_directory
from clusterctl.common.run_spec import RunSpec
from clusterctl.common.wheels import Wheel, WheelStore

OURSELVES = "clusterctl"
PROBLEM_CHARS = 400
DIGEST_CHARS = 16
TRY_S = 120.0
#: Imported to test that they work on this machine.
MODULES = {"numpy": "numpy", "pyzmq": "zmq", "cryptography": "cryptography"}


class Built(NamedTuple):
    """An environment. `builder` is what made it now, if anything did; `problem` is why uv could not."""

    name: str
    builder: str | None
    problem: str | None = None


class Venvs:
    """The environments below a ROOT_DIR for the interpreter that runs this agent."""

    def __init__(self, root: Path) -> None:
        self.directory = root / META / "venvs"
        self.base = os.path.realpath(sys.executable)
        self.minor = f"{sys.version_info[0]}.{sys.version_info[1]}"

    def path(self, name: str) -> Path:
        return self.directory / name

    def python(self, name: str) -> Path:
        return self.path(name) / "bin" / "python"

    def find(self, requirements: Sequence[str]) -> str | None:
        """Return the name of the complete environment for these requirements, or None."""
        known = read_json(self._pointer(requirements))
        name = known["environment"] if known else None
        return name if name and self._works(name) else None

    def newest(self) -> str | None:
        """Return the name of the newest environment for this interpreter, or None."""
        pointers = sorted((self.directory / "for").glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
        names = [(read_json(pointer) or {}).get("environment", "") for pointer in pointers]
        return next((name for name in names if name and self._works(name) and self._is_ours(name)), None)

    def _is_ours(self, name: str) -> bool:
        return os.path.realpath(self.python(name)) == self.base

    def _works(self, name: str) -> bool:
        return self.read_lock(name) is not None and self.python(name).exists()

    def read_lock(self, name: str) -> list[Wheel] | None:
        record = read_json(self.path(name) / "clusterctl.json")
        return [Wheel(*row) for row in record["lock"]] if record else None

    def _pointer(self, requirements: Sequence[str]) -> Path:
        key = "\0".join((digest(list(requirements)), self.base, self.minor))
        return self.directory / "for" / hashlib.sha256(key.encode()).hexdigest()[: 2 * DIGEST_CHARS]

    def point(self, requirements: Sequence[str], name: str) -> None:
        self._pointer(requirements).parent.mkdir(0o700, exist_ok=True)
        write_json(self._pointer(requirements), {"environment": name, "requirements": list(requirements)})

    def name_of(self, lock: Sequence[Wheel]) -> str:
        facts = [sorted([wheel.file, wheel.digest] for wheel in lock), self.base, self.minor, sys.implementation.name]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:DIGEST_CHARS]

    def sweep(self) -> None:
        """Remove the leftovers of interrupted builds. The caller must hold the lock."""
        for leftover in self.directory.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def build(self, lock: Sequence[Wheel], store: WheelStore, is_gone: IsGone, uv: Uv | None = None) -> Built:
        """Return the environment of these wheels, made now if it is absent. It appears only if it works.

        Without `uv`, or if that fails, the wheels are unpacked here. `is_gone` is called with the name of each package.
        """
        name = self.name_of(lock)
        if self._works(name):
            return Built(name, None)
        beside = Path(tempfile.mkdtemp(prefix=".", dir=self.directory))
        try:
            builder, problem = self._install(beside, lock, store, is_gone, uv)
            try_out(beside / "bin" / "python", lock)
            write_json(beside / "clusterctl.json", {"v": 1, "lock": [list(wheel) for wheel in lock]})
            sync_disk(beside)
            shutil.rmtree(self.path(name), ignore_errors=True)
            beside.rename(self.path(name))
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return Built(name, builder, problem)

    def _install(
        self, top: Path, lock: Sequence[Wheel], store: WheelStore, is_gone: IsGone, uv: Uv | None
    ) -> tuple[str, str | None]:
        """Fill an environment. Return what did it, and why uv did not."""
        problem = None
        if uv:
            for wheel in lock:
                check_names(store.path(wheel))
            self._make(top, relocatable=True)
            problem = uv.install(top / "bin" / "python", lock, store, is_gone)
            if problem is None:
                return f"uv {uv.version}", None
            for path in top.iterdir():
                path.unlink() if path.is_file() else shutil.rmtree(path)
        target = InstallTarget(top, self._make(top), str(self.python(self.name_of(lock))))
        for wheel in lock:
            is_gone(wheel.name)
            unpack(store.path(wheel), target)
        return OURSELVES, problem and problem[-PROBLEM_CHARS:]

    def _make(self, top: Path, *, relocatable: bool = False) -> Path:
        """Make an environment without packages, and return their directory.

        uv writes the scripts of a relocatable one so that they find their interpreter after the directory is renamed.
        """
        site = top / "lib" / f"python{self.minor}" / "site-packages"
        site.mkdir(parents=True)
        (top / "bin").mkdir()
        for alias in ("python", "python3", f"python{self.minor}"):
            (top / "bin" / alias).symlink_to(self.base)
        version = ".".join(map(str, sys.version_info[:3]))
        home = Path(self.base).parent
        lines = [f"home = {home}", "include-system-site-packages = false", f"version = {version}"]
        lines += [f"executable = {self.base}", *(["relocatable = true"] if relocatable else [])]
        (top / "pyvenv.cfg").write_text("\n".join(lines) + "\n")
        return site


def try_out(python: Path, lock: Sequence[Wheel]) -> None:
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


def find_for_job(root: Path, job_dir: Path, runtime: bool) -> Path | None:
    """Return the environment that `setup` made for this job's requirements and the interpreter PYTHON."""
    try:
        lists = [of_directory(job_dir, runtime, added) for added in (RUNTIME, RUNTIME_BEFORE)]
    except (OSError, UnicodeDecodeError):
        return None
    venvs = Venvs(root)
    name = next(filter(None, map(venvs.find, lists)), None)
    return venvs.path(name) if name else None


def find_newest(root: Path) -> Path | None:
    """Return the newest environment that `setup` made, for a node without a job."""
    venvs = Venvs(root)
    name = venvs.newest()
    return venvs.path(name) if name else None


def in_environment(spec: RunSpec, venv: Path | None, python: str) -> RunSpec:
    """Return the spec with the environment's interpreter in place of PYTHON; without one, the spec unchanged."""
    if venv is None:
        return spec
    inside = str(venv / "bin" / "python")
    processes = tuple(
        process.replace(argv=(inside, *process.argv[1:])) if process.argv[0] == python else process
        for process in spec.processes
    )
    return spec.replace(venv=str(venv), processes=processes)
