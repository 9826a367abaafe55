"""Commands as values. Only this module turns one into text for a remote shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TypeAlias

from clusterctl.errors import UsageError

_TILDE = re.compile(r"~[A-Za-z0-9._-]*(?=/|$)")
# The characters that some login shell (sh, bash, zsh, csh, tcsh, fish) does not take literally in single quotes.
_QUOTE_STOPPERS = re.compile(r"(['\\!]+)")
# Line ends, which csh does not allow in quotes, and bytes that are not UTF-8, which some servers refuse.
_UNSENDABLE = re.compile("[\n\r\udc80-\udcff]")


@dataclass(frozen=True)
class RemotePath:
    """A path on a node. The node expands a leading `~` or `~user`; everything else is literal."""

    path: str


@dataclass(frozen=True)
class Raw:
    """POSIX shell text, passed on unchanged. The caller is responsible for its quoting."""

    text: str


Argument: TypeAlias = "str | RemotePath | Raw"


@dataclass(frozen=True)
class RemoteCommand:
    """A command for a node: an argument vector, run by the node's POSIX `sh` in the user's home directory.

    Strings and paths reach the program byte for byte (non-UTF-8 bytes as surrogate escapes); the shell interprets
    only `Raw`. The whole text is a single argument on the node, so keep it under 128 KiB and send anything long,
    and every secret, on stdin. Messages show the `title` instead of the command, if it has one.
    """

    argv: tuple[Argument, ...]
    title: str | None = None

    def __str__(self) -> str:
        return sh_text(self)


def command(*argv: Argument) -> RemoteCommand:
    """Build a command from these arguments."""
    return RemoteCommand(argv)


def sh_text(command: RemoteCommand) -> str:
    """Return the command as a line of POSIX shell, for messages and for `quote`."""
    return " ".join(_sh_argument(argument) for argument in command.argv)


def quote(command: RemoteCommand) -> str:
    """Return the text for an SSH server, which passes it to the user's login shell.

    The login shell sees only `exec /bin/sh -c '...'`, quoted so that POSIX shells, csh and fish parse it
    identically; that sh interprets the rest. Raises UsageError for an empty command, or one with a NUL byte,
    which no process argument can contain.
    """
    return f"exec /bin/sh -c {login_shell_argument(script_of(command))}"


def script_of(command: RemoteCommand, before: str = "") -> str:
    """Return a command as a script for `/bin/sh -c`: one line of valid UTF-8, after the shell text `before`.

    Raises as `quote` does.
    """
    if not command.argv:
        raise UsageError("the command to run on the nodes is empty")
    script = sh_text(command)
    if "\0" in script:
        raise UsageError("a command cannot contain a NUL byte", hint="send binary data on standard input")
    if not any(isinstance(argument, Raw) for argument in command.argv):
        script = f"exec {script}"
    elif before:
        script = f"eval {shlex.quote(script)}"  # a mistake in it is its own, and comes after `before`
    return before + _sendable(script)


def _sh_argument(argument: Argument) -> str:
    if isinstance(argument, Raw):
        return argument.text
    if isinstance(argument, RemotePath):
        return _path_argument(argument.path)
    return shlex.quote(argument)


def _path_argument(path: str) -> str:
    tilde = _TILDE.match(path)
    if tilde is None:
        return shlex.quote(f"./{path}" if path.startswith("-") else path)
    rest = path[tilde.end() + 1 :]
    slash = "/" if tilde.end() < len(path) else ""
    return tilde.group() + slash + (shlex.quote(rest) if rest else "")


def _sendable(script: str) -> str:
    """Return an equivalent script as one line of valid UTF-8."""
    if not _UNSENDABLE.search(script):
        return script
    escaped = _UNSENDABLE.sub(lambda match: f"\\0{_byte(match[0]):03o}", script.replace("\\", "\\\\"))
    return f'eval "$(printf %b {shlex.quote(escaped)})"'


def _byte(char: str) -> int:
    return char.encode("utf-8", "surrogateescape")[0]


def login_shell_argument(text: str) -> str:
    """Quote one word of one line, so that POSIX shells, csh and fish parse it identically."""
    parts = _QUOTE_STOPPERS.split(text)
    return "".join(
        "".join(f"\\{char}" for char in part) if index % 2 else f"'{part}'" if part else ""
        for index, part in enumerate(parts)
    )
