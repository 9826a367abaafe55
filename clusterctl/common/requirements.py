"""The requirements of a workspace, identical on the control machine and on the nodes.

A lock file counts as one requirement: its name and hash. Nodes do not parse it, because Python 3.9 cannot read TOML.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FILE = "requirements.txt"
UV_LOCK = "uv.lock"
LOCKS = ("pylock.toml", UV_LOCK)  # either of them replaces requirements.txt
RUNTIME = ("numpy", "pyzmq", "cryptography")  # imported by our runtime
RUNTIME_BEFORE = RUNTIME[:2]  # in environments of older versions, which stay good: it can do without the last one
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
PROJECT = re.compile(rf"({NAME.pattern})\s*(?:\[[^\]]*\]\s*)?(?:$|[@;<>=!~(])")
OTHER_FILES = ("-r", "--requirement", "-e", "--editable")
IN_LOCK = re.compile(r'^name = "([^"/]+)"$', re.MULTILINE)
ARCHIVES = (".whl", ".tar.gz", ".zip")


def normal(name: str) -> str:
    """Return a project's name in its normalized spelling (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def logical_lines(text: str) -> list[tuple[int, str]]:
    """Return (line number, requirement) pairs, without comments. A trailing backslash continues a line."""
    requirements: list[tuple[int, str]] = []
    start = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        start = start if parts else number
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        parts.append(bare.rstrip("\\").strip())
        if bare.endswith("\\"):
            continue
        whole = " ".join(filter(None, parts))
        parts = []
        if whole:
            requirements.append((start, whole))
    if any(parts):
        requirements.append((start, " ".join(filter(None, parts))))
    return requirements


def effective(text: str | None, runtime: bool, added: tuple[str, ...] = RUNTIME) -> list[str]:
    """Return the requirements of this text (None: no file), plus those `added` for our runtime if it takes part."""
    lines = [line for _, line in logical_lines(text or "")]
    named = {normal(match[0]) for line in lines if (match := NAME.match(line))}
    if runtime or text is None:
        lines += [name for name in added if name not in named]
    return lines


def lock_of(directory: Path) -> str | None:
    """Return the name of the lock file in a workspace or job, if there is one."""
    return next((name for name in LOCKS if (directory / name).is_file()), None)


def of_lock(name: str, data: bytes, runtime: bool, added: tuple[str, ...] = RUNTIME) -> list[str]:
    """Return the requirements that stand for a lock file and, if our runtime takes part, what it imports."""
    return [f"{name} sha256:{hashlib.sha256(data).hexdigest()}", *(added if runtime else ())]


def of_directory(directory: Path, runtime: bool, added: tuple[str, ...] = RUNTIME) -> list[str]:
    """Return the requirements of a workspace or job: those of its lock file, else of its requirements.txt.

    Raises UnicodeDecodeError, OSError.
    """
    lock = lock_of(directory)
    if lock is not None:
        return of_lock(lock, (directory / lock).read_bytes(), runtime, added)
    return effective(read_text(directory), runtime, added)


def file_of(directory: Path) -> str | None:
    """Return the name of the file that says what a job requires. None if there is none, or it requires nothing."""
    try:
        return lock_of(directory) or (FILE if logical_lines(read_text(directory) or "") else None)
    except (OSError, UnicodeDecodeError):
        return None


def names_in(directory: Path) -> list[str] | None:
    """Return the names of a job's required projects; for a lock file, of all projects that it mentions.

    None if there is no such file, or if it does not name all of them.
    """
    try:
        lock = lock_of(directory)
        if lock is not None:
            found = IN_LOCK.findall((directory / lock).read_text(encoding="utf-8"))
            return [normal(name) for name in found if not name.endswith(ARCHIVES)]
        text = read_text(directory)
    except (OSError, UnicodeDecodeError):
        return None
    return None if text is None else project_names(text)


def project_names(text: str) -> list[str] | None:
    """Return the normalized names of the projects in this text. None if it refers to other files, URLs or paths."""
    names = []
    for _, line in logical_lines(text):
        match = PROJECT.match(line)
        if match:
            names.append(normal(match[1]))
        elif not line.startswith("-") or line.startswith(OTHER_FILES):
            return None
    return names


def digest(requirements: list[str]) -> str:
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()


def read_text(directory: Path) -> str | None:
    """Return the text of a workspace's requirements.txt, or None if it has none. Raises UnicodeDecodeError, OSError."""
    try:
        return (directory / FILE).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
