"""Copies of the tree with an environment of their own, in which tests import the copy, and so do their subprocesses."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

from support.places import ROOT

WORK = Path(tempfile.gettempdir(), "clusterctl-seeded")
CAGE = Path(__file__).with_name("cage.py")
SEPARATE = "docker or engines or faults or kubernetes or mpi or slurm or upgrade"


@dataclass(frozen=True)
class Ran:
    code: int
    seconds: float
    output: str


@dataclass(frozen=True)
class Tree:
    """A copy of the tracked files of `source`, with a .venv that has the packages of this Python's environment.

    Tests with the mark `slow` are left out unless `slow` is True.
    """

    directory: Path
    slow: bool = False

    @classmethod
    def copy(cls, directory: Path, *, slow: bool = False, source: Path = ROOT) -> Tree:
        shutil.rmtree(directory, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (source / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, directory / name)
        venv.create(directory / ".venv", symlinks=True, with_pip=False)
        packages = next((directory / ".venv").glob("lib/*/site-packages"))
        (packages / "0tree.pth").write_text(f"{directory}\n")
        (packages / "1packages.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
        for program in Path(sys.executable).parent.iterdir():
            ours = directory / ".venv/bin" / program.name
            if not ours.exists() and not program.name.startswith("python"):
                _install(program, ours)
        return cls(directory, slow)

    def write(self, name: str, text: str, number: int) -> None:
        """Replace a module. Its time is unlike all others, or Python may take the bytecode of a file as long."""
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        moment = 1_000_000_000 + number
        os.utime(path, (moment, moment))

    def pytest(self, *arguments: str, limit_s: float) -> Ran:
        """Run tests; nothing that they start outlives the call."""
        python = str(self.directory / ".venv/bin/python")
        temporary = self.directory.with_name(f"{self.directory.name}-temporary")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
        marks = f"not ({SEPARATE})" if self.slow else f"not (slow or {SEPARATE})"
        options = ["-q", "-p", "no:cacheprovider", "-m", marks, "--timeout", "200"]
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, str(CAGE), str(limit_s), python, "-m", "pytest", *options, *arguments],
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            output, _ = process.communicate()
        return Ran(process.returncode, round(time.monotonic() - began, 1), output.decode(errors="replace"))


def _install(program: Path, ours: Path) -> None:
    """Copy a script so that it runs the Python beside it; link any other program."""
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if is_script:
        theirs, python = os.fsencode(sys.executable), os.fsencode(ours.with_name("python"))
        ours.write_bytes(program.read_bytes().replace(theirs, python))
        ours.chmod(0o755)
    else:
        ours.symlink_to(program)


def add_options(parser: argparse.ArgumentParser, limit_s: float) -> None:
    """Add the options that both programs have; `limit_s` is the default of `--limit`."""
    parser.add_argument("--work", type=Path, default=WORK, help="where the copies go")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=limit_s, help="seconds for each test file or fault")
    parser.add_argument("--slow", action="store_true", help="also tests with the mark slow")
