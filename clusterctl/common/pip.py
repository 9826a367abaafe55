"""Run pip for this node's interpreter: its own, or the one that uv provides without venv or ensurepip."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from clusterctl.common.errors import Gone
from clusterctl.common.wheels import Wheel, WheelStore, pinned

LOOK_S = 0.2
TAIL_BYTES = 4096
PACKAGE = re.compile(r"^(?:Collecting|Building wheel for) ([\w.-]+)", re.MULTILINE)
OPTIONS = ("--disable-pip-version-check", "--no-input", "--no-color")
UV_PLACES = ("~/.local/bin/uv", "~/.cargo/bin/uv")  # where its installers put it: not in the PATH of an SSH command
UV_RUNS = ("tool", "run", "--isolated", "--no-python-downloads", "--no-progress", "--color=never", "--python")
UV_VARIABLES = {  # not on the command line: a URL may hold a password
    "--index-url": "UV_DEFAULT_INDEX",
    "--extra-index-url": "UV_INDEX",
    "--find-links": "UV_FIND_LINKS",
    "--no-index": "UV_NO_INDEX",
}
BETWEEN = {"UV_INDEX": " ", "UV_FIND_LINKS": ","}


#: Called while pip runs, with the package that it is working on, or "". True if nobody waits for it any more.
IsGone = Callable[[str], bool]


class Pip(NamedTuple):
    """A pip to run. `tool` is its source, "pip" or "uv"; `argv` runs it."""

    tool: str
    argv: tuple[str, ...]

    def resolve(self, requirements: Sequence[str], store: WheelStore, is_gone: IsGone) -> list[Wheel] | str:
        """Choose versions for this python, download their wheels, and build those that have none.

        Return the wheels, now in the store; or pip's output if it failed.
        """
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(requirements) + "\n")
            wheels = Path(workplace, "wheels")
            wheels.mkdir()
            arguments = ["wheel", "--wheel-dir", str(wheels), "--requirement", str(listed)]
            failed = self._run(arguments, requirements, is_gone)
            return failed or sorted(store.adopt(path) for path in wheels.glob("*.whl"))

    def download(self, missing: Sequence[Wheel], options: Sequence[str], store: WheelStore, is_gone: IsGone) -> None:
        """Download the wheels that the index has with exactly this hash; the others stay missing."""
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join([*options, *pinned(missing)]) + "\n")
            exact = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(listed)]
            self._run(["download", "--dest", workplace, *exact], options, is_gone)
            for path in Path(workplace).glob("*.whl"):
                store.adopt(path)

    def environment(self, requirements: Iterable[str]) -> dict[str, str] | None:
        """Return the environment to run pip with, given the options among the requirements; None to inherit."""
        return {**os.environ, **uv_variables(requirements)} if self.tool == "uv" else None

    def _run(self, arguments: Sequence[str], requirements: Sequence[str], is_gone: IsGone) -> str | None:
        """Run it, and kill it when `is_gone` (the control machine left). Return its output if it failed."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [*self.argv, *OPTIONS, *arguments],
                cwd="/",  # -m puts it on the path
                env=self.environment(requirements),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                while not _has_ended(process):
                    if is_gone(_current_package(output.fileno())):
                        raise Gone
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")[-20_000:].strip()
        return (text or f"exit code {process.returncode}") if process.returncode else None


def _current_package(output: int) -> str:
    """Return the package that the last lines of pip's output name, or ""."""
    last = os.pread(output, TAIL_BYTES, max(0, os.fstat(output).st_size - TAIL_BYTES))
    names = PACKAGE.findall(last.decode(errors="replace"))
    return names[-1] if names else ""


def find_pip() -> Pip | None:
    """Return the pip of the interpreter that runs this agent, or the one that uv provides for it."""
    if _has_pip():
        return Pip("pip", (sys.executable, "-m", "pip"))
    paths = (shutil.which("uv"), *(os.path.expanduser(path) for path in UV_PLACES))  # noqa: PTH111
    uv = next((path for path in paths if path and os.access(path, os.X_OK)), None)
    return lent_by(uv) if uv else None


def lent_by(uv: str) -> Pip:
    """Return the pip that uv runs with this interpreter. uv fetches it if it is not in its cache."""
    return Pip("uv", (uv, *UV_RUNS, sys.executable, "pip"))


def uv_variables(requirements: Iterable[str]) -> dict[str, str]:
    """Return the options among these lines as variables of uv, so that it finds pip where pip finds the rest."""
    variables: dict[str, str] = {}
    words = [word for line in requirements if line.startswith("--") for word in _words(line)]
    for option, value in zip(words, [*words[1:], ""]):
        name = UV_VARIABLES.get(option)
        if name == "UV_NO_INDEX":
            variables[name] = "1"
        elif name in BETWEEN and name in variables:
            variables[name] += BETWEEN[name] + value
        elif name:
            variables[name] = value
    return variables


def _words(line: str) -> Iterator[str]:
    for word in line.split():
        yield from word.split("=", 1) if word.startswith("--") else (word,)


def _has_pip() -> bool:
    """Look for pip in another process: the agent itself runs without site-packages."""
    code = "import sys, importlib.util as u; sys.exit(u.find_spec('pip') is None)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True
