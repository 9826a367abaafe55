"""pip at work for this node's interpreter: its own, or one that uv lends it, which needs neither venv nor ensurepip."""

from __future__ import annotations

import os
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
OPTIONS = ("--disable-pip-version-check", "--no-input", "--no-color")
UV_PLACES = ("~/.local/bin/uv", "~/.cargo/bin/uv")  # its installers', which are not in the PATH of an SSH command
UV_RUNS = ("tool", "run", "--isolated", "--no-python-downloads", "--no-progress", "--color=never", "--python")
UV_VARIABLES = {  # not on the command line: an address may hold a password
    "--index-url": "UV_DEFAULT_INDEX",
    "--extra-index-url": "UV_INDEX",
    "--find-links": "UV_FIND_LINKS",
    "--no-index": "UV_NO_INDEX",
}
BETWEEN = {"UV_INDEX": " ", "UV_FIND_LINKS": ","}


class Pip(NamedTuple):
    """`tool` says where it comes from, pip or uv; `argv` runs it."""

    tool: str
    argv: tuple[str, ...]

    def resolve(self, requirements: Sequence[str], store: WheelStore, is_gone: Callable[[], bool]) -> list[Wheel] | str:
        """Chooses versions for this very python, downloads wheels, and builds those that there are not.

        The wheels, now in the store; or what it says when it fails.
        """
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(requirements) + "\n")
            wheels = Path(workplace, "wheels")
            wheels.mkdir()
            arguments = ["wheel", "--wheel-dir", str(wheels), "--requirement", str(listed)]
            failed = self._run(arguments, requirements, is_gone)
            return failed or sorted(store.adopt(path) for path in wheels.glob("*.whl"))

    def download(
        self, missing: Sequence[Wheel], options: Sequence[str], store: WheelStore, is_gone: Callable[[], bool]
    ) -> None:
        """What the index has with the very hash; what it has not is missing still."""
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join([*options, *pinned(missing)]) + "\n")
            exact = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(listed)]
            self._run(["download", "--dest", workplace, *exact], options, is_gone)
            for path in Path(workplace).glob("*.whl"):
                store.adopt(path)

    def environment(self, requirements: Iterable[str]) -> dict[str, str] | None:
        """What it is run with, for requirements with options among them; None: what this process has."""
        return {**os.environ, **uv_variables(requirements)} if self.tool == "uv" else None

    def _run(self, arguments: Sequence[str], requirements: Sequence[str], is_gone: Callable[[], bool]) -> str | None:
        """Run it, and kill it when `is_gone` (the control machine left). Return its output if it failed."""
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*self.argv, *OPTIONS, *arguments],
                cwd="/",  # -m puts it on the path
                env=self.environment(requirements),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                while not _has_ended(process):
                    if is_gone():
                        raise Gone
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said.seek(0)
            text = said.read().decode(errors="replace")[-20_000:].strip()
        return (text or f"it ended with code {process.returncode}") if process.returncode else None


def find_pip() -> Pip | None:
    """The pip of the interpreter that runs this agent, or the one that uv can give it."""
    if _has_pip():
        return Pip("pip", (sys.executable, "-m", "pip"))
    places = (shutil.which("uv"), *(os.path.expanduser(place) for place in UV_PLACES))  # noqa: PTH111
    uv = next((place for place in places if place and os.access(place, os.X_OK)), None)
    return lent_by(uv) if uv else None


def lent_by(uv: str) -> Pip:
    """The pip that uv runs with this interpreter; uv fetches it when it is not in its cache."""
    return Pip("uv", (uv, *UV_RUNS, sys.executable, "pip"))


def uv_variables(requirements: Iterable[str]) -> dict[str, str]:
    """What uv must know of the options among these lines, to find pip itself where pip will find the rest."""
    found: dict[str, str] = {}
    words = [word for line in requirements if line.startswith("--") for word in _words(line)]
    for option, value in zip(words, [*words[1:], ""]):
        name = UV_VARIABLES.get(option)
        if name == "UV_NO_INDEX":
            found[name] = "1"
        elif name in BETWEEN and name in found:
            found[name] += BETWEEN[name] + value
        elif name:
            found[name] = value
    return found


def _words(line: str) -> Iterator[str]:
    for word in line.split():
        yield from word.split("=", 1) if word.startswith("--") else (word,)


def _has_pip() -> bool:
    """The agent itself runs without site-packages, so another process looks."""
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
