"""Run pip for this node's interpreter: its own, or the one that uv provides; or download wheels from their URLs."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, NamedTuple
from urllib.parse import urlsplit

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.paths import expand_program
from clusterctl.common.wheels import Wheel, WheelStore, WrongContentsError, pinned

LOOK_S = 0.2
TAIL_BYTES = 4096
PACKAGE = re.compile(r"^(?:Collecting|Building wheel for) ([\w.-]+)", re.MULTILINE)
EXACT = ("--no-deps", "--require-hashes")
OPTIONS = ("--disable-pip-version-check", "--no-input", "--no-color")
UV_PLACES = ("~/.local/bin/uv", "~/.cargo/bin/uv")  # where its installers put it: not in the PATH of an SSH command
UV_RUNS = ("tool", "run", "--isolated", "--no-python-downloads", "--no-progress", "--color=never", "--python")
UV_VARIABLES = {  # not on the command line: a URL may hold a password
    "--index-url": "UV_DEFAULT_INDEX",
    "--extra-index-url": "UV_INDEX",
    "--find-links": "UV_FIND_LINKS",
    "--no-index": "UV_NO_INDEX",
}
CONNECTIONS = 6
SILENCE_S = 15.0  # a firewall may drop packets
SCHEMES = ("http", "https")
HEADERS = {"User-Agent": "clusterctl", "Accept-Encoding": "identity"}
BETWEEN = {"UV_INDEX": " ", "UV_FIND_LINKS": ","}


#: Called while pip runs, with the package that it is working on, or "". True if nobody waits for it any more.
IsGone = Callable[[str], bool]


class Pip(NamedTuple):
    """A pip to run. `tool` is its source, "pip" or "uv"; `argv` runs it."""

    tool: str
    argv: tuple[str, ...]

    def resolve(
        self, requirements: Sequence[str], store: WheelStore, is_gone: IsGone, *, exact: bool = False
    ) -> list[Wheel] | str:
        """Choose versions for this python, download their wheels, and build those that have none.

        Return the wheels, now in the store; or pip's output if it failed. With `exact`, all requirements have hashes,
        and nothing else is needed.
        """
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(requirements) + "\n")
            wheels = Path(workplace, "wheels")
            wheels.mkdir()
            mode = EXACT if exact else ()
            arguments = ["wheel", *mode, "--wheel-dir", str(wheels), "--requirement", str(listed)]
            failed = self._run(arguments, requirements, is_gone)
            return failed or sorted(store.adopt(path) for path in wheels.glob("*.whl"))

    def download(self, missing: Sequence[Wheel], options: Sequence[str], store: WheelStore, is_gone: IsGone) -> None:
        """Download the wheels that the index has with exactly this hash; the others stay missing."""
        with store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join([*options, *pinned(missing)]) + "\n")
            exact = [*EXACT, "--only-binary", ":all:", "--requirement", str(listed)]
            self._run(["download", "--dest", workplace, *exact], options, is_gone)
            for path in Path(workplace).glob("*.whl"):
                store.adopt(path)

    def environment(self, requirements: Iterable[str]) -> dict[str, str] | None:
        """Return the environment to run pip with, given the options among the requirements; None to inherit."""
        return {**os.environ, **uv_variables(requirements)} if self.tool == "uv" else None

    def _run(self, arguments: Sequence[str], requirements: Sequence[str], is_gone: IsGone) -> str | None:
        return run_until_gone([*self.argv, *OPTIONS, *arguments], self.environment(requirements), is_gone)


def run_until_gone(argv: Sequence[str], environment: Mapping[str, str] | None, is_gone: IsGone) -> str | None:
    """Run a program, and kill it when `is_gone` (the control machine left). Return its output if it failed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            cwd="/",  # -m puts it on the path
            env=environment,
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
    uv = find_uv()
    return lent_by(uv) if uv else None


def find_uv() -> str | None:
    """Return the path of this account's uv."""
    paths = (shutil.which("uv"), *map(expand_program, UV_PLACES))
    return next((path for path in paths if path and os.access(path, os.X_OK)), None)


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


def environment_without_uv() -> dict[str, str]:
    """Return the variables of this process without those that configure uv."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UV_")}


def fetch_all(
    wheels: Sequence[Wheel], urls: Mapping[str, str], store: WheelStore, is_gone: IsGone = lambda package: False
) -> None:
    """Download the wheels that have a URL, by sha256, in `urls`. Those that cannot be fetched stay missing.

    The first one that cannot ends the attempt, because the others would wait for the same network. Raises AgentError
    (refused) if a file is not the one of the lock, and Gone.
    """
    stop = threading.Event()
    todo = [wheel for wheel in wheels if urlsplit(urls.get(wheel.digest, "")).scheme in SCHEMES]
    with _pool(stop) as pool:
        waiting = {pool.submit(_fetch, wheel, urls[wheel.digest], store, stop): wheel for wheel in todo}
        while waiting:
            done, _ = wait(waiting, LOOK_S, FIRST_COMPLETED)
            if is_gone(next(iter(waiting.values())).name):
                raise Gone
            for future in done:
                del waiting[future]
                if not _has_arrived(future):
                    return


@contextmanager
def _pool(stop: threading.Event) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        yield pool
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _has_arrived(future: Future[None]) -> bool:
    try:
        future.result()
    except (OSError, ValueError, http.client.HTTPException):  # the network, a certificate, a status, a malformed URL
        return False
    return True


def _fetch(wheel: Wheel, url: str, store: WheelStore, stop: threading.Event) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, headers=HEADERS), timeout=SILENCE_S) as answer:
        length = int(answer.headers.get("Content-Length") or wheel.size)

        def read(count: int) -> bytes:
            data: bytes = b"" if stop.is_set() else answer.read(count)
            if not data:
                raise ConnectionError("it ended early")
            return data

        try:
            if length != wheel.size:
                raise WrongContentsError
            store.take(wheel, read)
        except WrongContentsError:
            message = f"{wheel.name} {wheel.version}: {wheel.file} from {urlsplit(url).hostname} is not the locked file"
            hint = "its hash differs: lock the project again if the package index has replaced it"
            raise AgentError(message, kind="refused", hint=hint) from None
