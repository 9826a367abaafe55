"""Whether the interpreter of a job works, and what it has: tried once, and remembered until something of it changes.

To import numpy takes a node longer than all else of a start. So what was found is kept in ROOT_DIR/.clusterctl/, with
the inode and the time of the last change of every directory that the interpreter looked into for a module: a package
that is added, removed or replaced changes one of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.common.errors import AgentError
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import interpreter_record

MODULES = ("numpy", "zmq")
LIMIT_S = 60.0
VARIABLES = ("HOME", "LD_", "PATH", "PYTHON")  # how the names of those begin that decide what is imported
# The first line of its output tells the versions, the second which program it is, the others where it looked.
PROBE = """
print(sys.version.split()[0], *(module.__version__ for module in modules))
import os, site
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
looked = {os.path.realpath(sys.executable), sys.prefix + "/pyvenv.cfg", site.USER_SITE or "", *sys.path}
print(sys.executable, *filter(os.path.isabs, looked.union(map(os.path.dirname, files))), sep="\\n")
"""


def find_versions(root: Path, python: str, *, runtime: bool) -> dict[str, str]:
    """As `probe`, unless what that found the last time still holds."""
    known = read_json(interpreter_record(root))
    if known and known["asked"] == _asked(python, runtime) and known["marks"] == _marks(known["marks"]):
        versions: dict[str, str] = known["versions"]
        return versions
    return probe(root, python, runtime=runtime)


def probe(root: Path, python: str, *, runtime: bool) -> dict[str, str]:
    """The versions that processes will find; errors name what is missing and how to install it."""
    told, _, more = _run(python, runtime).partition("\n")
    versions = dict(zip(("python", "numpy", "pyzmq"), told.split()))
    asked, places = _asked(python, runtime), more.splitlines()
    if places[:1] == [asked["program"]]:  # else it is a script, which may choose another one the next time
        with contextlib.suppress(OSError):  # a disk that is full is for others to complain about
            record = {"asked": asked, "versions": versions, "marks": _marks(places)}
            write_json(interpreter_record(root), record, durable=False)
    return versions


def _asked(python: str, runtime: bool) -> dict[str, Any]:
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    return {"program": shutil.which(_command(python)), "runtime": runtime, "variables": variables}


def _marks(places: Iterable[str]) -> dict[str, list[int] | None]:
    return {place: _mark(place) for place in places}


def _mark(place: str) -> list[int] | None:
    """What changes when a file, or the list of those in a directory, does; None where there is nothing."""
    try:
        found = os.stat(place)  # noqa: PTH116 - forty of them
    except OSError:
        return None
    return [found.st_ino, found.st_ctime_ns]


def _command(python: str) -> str:
    return os.path.expanduser(python)  # noqa: PTH111 - a word without a slash is looked for in PATH


def _run(python: str, runtime: bool) -> str:
    imports = f"import {', '.join(MODULES)}; modules = ({', '.join(MODULES)})" if runtime else "modules = ()"
    try:
        tried = subprocess.run(
            [_command(python), "-c", f"import sys; {imports}{PROBE}"],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except OSError as exc:
        raise AgentError(f"cannot run {python!r}: {exc.strerror}", hint="PYTHON in conf.py names the one") from exc
    except subprocess.TimeoutExpired as exc:
        raise AgentError(f"{python!r} did not answer within {LIMIT_S:.0f} s") from exc
    if tried.returncode:
        missing = [name for name in MODULES if f"'{name}'" in tried.stderr]
        if missing:
            hint = "clusterctl setup makes an environment with what requirements.txt asks for"
            raise AgentError(f"{python} has no {missing[0]}", hint=hint)
        raise AgentError(f"{python} does not work: {tried.stderr.strip()[-300:]}")
    return tried.stdout
