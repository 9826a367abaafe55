"""Python environments of this node: named by their contents, and either complete or absent.

venvs/DIGEST/ is an environment like those of `python -m venv`, which `venv_build` makes. venvs/for/KEY names the one
for given requirements and an interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import META
from clusterctl.common.requirements import RUNTIME, RUNTIME_BEFORE, digest, of_directory
from clusterctl.common.run_spec import RunSpec
from clusterctl.common.wheels import Wheel

DIGEST_CHARS = 16


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
        return name if name and self.works(name) else None

    def newest(self) -> str | None:
        """Return the name of the newest environment for this interpreter, or None."""
        pointers = sorted((self.directory / "for").glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
        names = [(read_json(pointer) or {}).get("environment", "") for pointer in pointers]
        return next((name for name in names if name and self.works(name) and self._is_ours(name)), None)

    def _is_ours(self, name: str) -> bool:
        return os.path.realpath(self.python(name)) == self.base

    def works(self, name: str) -> bool:
        """Return True if the environment is complete, and its interpreter still there."""
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
