"""Commands are values; this module alone turns one into text for a remote shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TypeAlias

from clusterctl.errors import UsageError

_TILDE = re.compile(r"~[A-Za-z0-9._-]*(?=/|$)")
# What every login shell (sh, bash, zsh, csh, tcsh, fish) takes literally between single quotes.
_QUOTE_STOPPERS = re.compile(r"(['\\!]+)")
# Line ends, which csh cannot have within quotes, and bytes that are no UTF-8, which some servers refuse.
_UNSENDABLE = re.compile("[\n\r\udc80-\udcff]")


@dataclass(frozen=True)
class RemotePath:
    """A path on a node. A leading `~` or `~user` is expanded there; everything else is taken literally."""

    path: str


@dataclass(frozen=True)
class Raw:
    """Text of a POSIX shell, passed on as it is. The writer of it has done the quoting."""

    text: str


Argument: TypeAlias = "str | RemotePath | Raw"


@dataclass(frozen=True)
class Command:
    """What to run on a node: an argument vector, run by the POSIX `sh` of the node in the user's home.

    Strings and paths reach the program byte for byte (non-UTF-8 bytes as surrogate escapes); only `Raw`
    is seen by the shell. The whole text is one argument on the node, so keep it under 128 KiB and send
    anything long, and every secret, by stdin. Messages call it by its `title`, if it has one.
    """

    argv: tuple[Argument, ...]
    title: str | None = None

    def __str__(self) -> str:
        return sh_text(self)


def command(*argv: Argument) -> Command:
    """The command of these arguments."""
    return Command(argv)


def sh_text(command: Command) -> str:
    """The command as a line of POSIX shell, for messages and for wrapping by `quote`."""
    return " ".join(_sh_word(argument) for argument in command.argv)


def quote(command: Command) -> str:
    """The text to hand to an SSH server, which passes it to the user's login shell, whichever that is.

    The login shell only ever sees `exec /bin/sh -c '...'`, quoted so that POSIX shells, csh and fish
    read the same; everything else is the business of that sh. Raises UsageError for an empty command or
    one with a NUL, which no argument of a process can hold.
    """
    if not command.argv:
        raise UsageError("the command to run on the nodes is empty")
    script = sh_text(command)
    if "\0" in script:
        raise UsageError("a command cannot contain a NUL byte", hint="send binary data by standard input")
    if not any(isinstance(argument, Raw) for argument in command.argv):
        script = f"exec {script}"
    return f"exec /bin/sh -c {_login_shell_word(_sendable(script))}"


def _sh_word(argument: Argument) -> str:
    if isinstance(argument, Raw):
        return argument.text
    if isinstance(argument, RemotePath):
        return _path_word(argument.path)
    return shlex.quote(argument)


def _path_word(path: str) -> str:
    tilde = _TILDE.match(path)
    if tilde is None:
        return shlex.quote(f"./{path}" if path.startswith("-") else path)
    rest = path[tilde.end() + 1 :]
    slash = "/" if tilde.end() < len(path) else ""
    return tilde.group() + slash + (shlex.quote(rest) if rest else "")


def _sendable(script: str) -> str:
    """The same script as one line of proper UTF-8."""
    if not _UNSENDABLE.search(script):
        return script
    escaped = _UNSENDABLE.sub(lambda found: f"\\0{_byte(found[0]):03o}", script.replace("\\", "\\\\"))
    return f'eval "$(printf %b {shlex.quote(escaped)})"'


def _byte(char: str) -> int:
    return char.encode("utf-8", "surrogateescape")[0]


def _login_shell_word(text: str) -> str:
    parts = _QUOTE_STOPPERS.split(text)
    return "".join(
        "".join(f"\\{char}" for char in part) if index % 2 else f"'{part}'" if part else ""
        for index, part in enumerate(parts)
    )
