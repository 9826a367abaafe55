"""The requirements of a workspace, read and validated before any node is contacted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from clusterctl.common.requirements import FILE, LOCKS, NAME, effective, logical_lines, of_lock, read_text
from clusterctl.errors import ConfigError
from clusterctl.setup.locks import LockFile, read_lock

ELSEWHERE = ("-r", "--requirement", "-c", "--constraint", "-e", "--editable")
VERSION = r"(?:===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
REQUIREMENT = re.compile(
    rf"{NAME.pattern}\s*(\[[A-Za-z0-9._,\s-]*\])?\s*"
    rf"(\(?\s*{VERSION}(\s*,\s*{VERSION})*\s*,?\s*\)?|@\s*(?!file:)[a-z+]+://\S+)?\s*(;.*?)?(\s+--hash[= ]\S+)*"
)


@dataclass(frozen=True)
class Requirements:
    """The requirements of a workspace, and their `source` for messages.

    `lines` stand for them on the nodes. Without a `lock`, they are what pip reads; with one, its name and hash, and the
    projects that our runtime imports. `ignored` is a file that the lock file replaces.
    """

    source: str
    lines: tuple[str, ...]
    lock: LockFile | None = None
    ignored: str | None = None

    @property
    def packages(self) -> list[str]:
        if self.lock:
            return self.lock.names
        return [line for line in self.lines if not line.startswith("--")]

    @property
    def options(self) -> list[str]:
        """Lines such as --index-url, which may contain a password."""
        return [line for line in self.lines if line.startswith("--")]


def read_requirements(workspace: Path, *, runtime: bool) -> Requirements:
    """Read the requirements of the workspace, adding numpy and pyzmq for our `runtime` or if there is no file.

    Raises ConfigError that names the invalid line, or two lock files of which none can be preferred.
    """
    if not workspace.is_dir():
        raise ConfigError(f"the workspace {workspace} does not exist", hint="clusterctl init creates one")
    locks = [name for name in LOCKS if (workspace / name).is_file()]
    if len(locks) > 1:
        raise ConfigError(f"{workspace} has two lock files, {' and '.join(locks)}", hint="delete one of them")
    return _from_lock(workspace, locks[0], runtime) if locks else _from_text(workspace, runtime)


def _from_lock(workspace: Path, name: str, runtime: bool) -> Requirements:
    path = workspace / name
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    lines = tuple(of_lock(name, data, runtime))
    ignored = FILE if (workspace / FILE).exists() else None
    return Requirements(str(path), lines, read_lock(path, data), ignored)


def _from_text(workspace: Path, runtime: bool) -> Requirements:
    path = workspace / FILE
    try:
        text = read_text(workspace)
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    for number, line in logical_lines(text or ""):
        _check(f"{path}:{number}", line)
    return Requirements(f"no {path}" if text is None else str(path), tuple(effective(text, runtime)))


def _check(where: str, line: str) -> None:
    word = re.split(r"[\s=]", line)[0]
    if word in ELSEWHERE or line.startswith(("-r", "-c", "-e")):
        hint = "list the requirements themselves; put your own code in the workspace"
        raise ConfigError(f"{where}: {line!r} refers to another file, which nodes do not have", hint=hint)
    if not line.startswith("--") and not REQUIREMENT.fullmatch(line):
        raise ConfigError(f"{where}: {line!r} is not a requirement", hint="one per line, such as: numpy>=1.26,<3")
