"""What a workspace's requirements.txt asks for; the same answer on the control machine and on the nodes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FILE = "requirements.txt"
RUNTIME = ("numpy", "pyzmq")  # what our runtime imports
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def normal(name: str) -> str:
    """A project's name in the one spelling that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def logical_lines(text: str) -> list[tuple[int, str]]:
    """(line number, requirement) without comments and blank lines; a backslash at the end continues a line."""
    found: list[tuple[int, str]] = []
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
            found.append((start, whole))
    if any(parts):
        found.append((start, " ".join(filter(None, parts))))
    return found


def effective(text: str | None, runtime: bool) -> list[str]:
    """The requirements of this text (None: there is no file), with what the runtime needs where it takes part."""
    lines = [line for _, line in logical_lines(text or "")]
    named = {normal(found[0]) for line in lines if (found := NAME.match(line))}
    if runtime or text is None:
        lines += [name for name in RUNTIME if name not in named]
    return lines


def digest(requirements: list[str]) -> str:
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()


def read_text(directory: Path) -> str | None:
    """The text of a workspace's requirements.txt, or None when it has none. Raises UnicodeDecodeError, OSError."""
    try:
        return (directory / FILE).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
