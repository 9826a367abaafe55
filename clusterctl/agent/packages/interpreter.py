"""Test a job's interpreter and find its versions; the result is cached until the interpreter changes.

Importing numpy takes longer than the rest of a start on a node. So the result is kept in ROOT_DIR/.clusterctl/, with
the inode and the change time of every directory in which the interpreter looked for a module: adding, removing or
replacing a package changes one of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import expand_program, interpreter_record

MODULES = ("numpy", "zmq")
OPTIONAL = "cryptography"  # of the runtime; it cannot be imported without cffi
LIMIT_S = 60.0
TRIES = 3
SHOW = "import sys; print(sys.executable)"
VARIABLES = ("HOME", "LD_", "PATH", "PYTHON")  # prefixes of the variables that affect imports
# The first line of its output has the versions, the second the program, the others the directories it searched.
PROBE = """
import importlib.util, os, site
try:
    if modules and importlib.util.find_spec("cffi"):
        import cryptography
        modules += (cryptography,)
except ImportError:
    pass
print(sys.version.split()[0], *(module.__version__ for module in modules))
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
looked = {os.path.realpath(sys.executable), sys.prefix + "/pyvenv.cfg", site.USER_SITE or "", *sys.path}
print(sys.executable, *filter(os.path.isabs, looked.union(map(os.path.dirname, files))), sep="\\n")
"""


def find_versions(root: Path, python: str, *, runtime: bool) -> dict[str, str]:
    """Return the cached result of `probe` if it is still valid, else probe again."""
    known = read_json(interpreter_record(root))
    if known and known["asked"] == _asked(python, runtime) and known["marks"] == _marks(known["marks"]):
        versions: dict[str, str] = known["versions"]
        return versions
    return probe(root, python, runtime=runtime)


def probe(root: Path, python: str, *, runtime: bool) -> dict[str, str]:
    """Return the versions that processes will find. Errors name a missing package and how to install it."""
    first, _, more = _run(python, runtime).partition("\n")
    versions = dict(zip(("python", "numpy", "pyzmq", OPTIONAL), first.split()))
    asked, paths = _asked(python, runtime), more.splitlines()
    if paths[:1] == [asked["program"]]:  # else it is a script, which may choose another program the next time
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            record = {"asked": asked, "versions": versions, "marks": _marks(paths)}
            write_json(interpreter_record(root), record, durable=False)
    return versions


def measure_shim(python: str) -> dict[str, Any] | None:
    """Return the interpreter that a shim started in place of `python` to run this agent, and the seconds this adds.

    None if there is no shim. Which interpreter a shim chooses can change with every call, so it is never remembered.
    """
    if os.fsdecode(Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0]) == expand_program(python):
        return None
    own_directory = str(Path(sys.executable).parent)  # pyenv puts it before that of the shim
    places = [place for place in os.get_exec_path() if place != own_directory]
    shim = shutil.which(expand_program(python), path=os.pathsep.join(places))
    times = [(_start_s(shim), _start_s(sys.executable)) for _ in range(TRIES)] if shim else []
    if not times:
        return None
    by_shim, directly = map(min, zip(*times))
    return {"program": sys.executable, "seconds": round(max(0.0, by_shim - directly), 3)}


def _start_s(program: str) -> float:
    """Return the seconds that a bare start of this interpreter takes; 0 if it is no start of ours."""
    begun = time.monotonic()
    try:
        tried = subprocess.run(
            [program, "-I", "-S", "-c", SHOW], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0.0
    return time.monotonic() - begun if tried.stdout.rstrip("\n") == sys.executable else 0.0


def _asked(python: str, runtime: bool) -> dict[str, Any]:
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    asked = {"program": shutil.which(expand_program(python)), "runtime": runtime, "variables": variables}
    return {**asked, "optional": OPTIONAL}  # older versions did not look for it


def _marks(paths: Iterable[str]) -> dict[str, list[int] | None]:
    return {path: _mark(path) for path in paths}


def _mark(path: str) -> list[int] | None:
    """Return numbers that change with a file, or with the list of a directory; None if there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return [status.st_ino, status.st_ctime_ns]


def _run(python: str, runtime: bool) -> str:
    imports = f"import {', '.join(MODULES)}; modules = ({', '.join(MODULES)})" if runtime else "modules = ()"
    try:
        tried = subprocess.run(
            [expand_program(python), "-c", f"import sys; {imports}{PROBE}"],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except OSError as exc:
        raise AgentError(f"cannot run {python!r}: {exc.strerror}", hint="set PYTHON in conf.py") from exc
    except subprocess.TimeoutExpired as exc:
        raise AgentError(f"{python!r} did not answer within {LIMIT_S:.0f} s") from exc
    if tried.returncode:
        missing = [name for name in MODULES if f"'{name}'" in tried.stderr]
        if missing:
            hint = "run clusterctl setup: it makes an environment that has it"
            raise AgentError(f"{python} has no {missing[0]}", hint=hint)
        raise AgentError(f"{python} does not work: {tried.stderr.strip()[-300:]}")
    return tried.stdout
