"""Small parsers that turn the values allowed in conf.py into the one form that the rest of the code uses.

Each takes any object and returns the parsed value or raises ValueError. The text of the error follows
`PORT = 99999: `, for example `must be from 1 to 65535`. No parser touches the disk or the network.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import reprlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Parser = Callable[[object], T]

_REPR = reprlib.Repr()
_REPR.maxstring = 60
_SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})


def shown(value: object) -> str:
    """Return ` = 99999`, to follow the name of a setting in a message; long values are shortened."""
    return f" = {_REPR.repr(value)}"


def optional(parser: Parser[T]) -> Parser[T | None]:
    """Keep None, and pass any other value to `parser`."""
    return lambda value: None if value is None else parser(value)


def text(value: object) -> str:
    """Parse a string of one line with at least one visible character."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if not value.strip():
        raise ValueError("must not be empty")
    if not value.isprintable():
        raise ValueError("must not contain control characters")
    return value


def whole(minimum: int, maximum: int | None = None) -> Parser[int]:
    """Parse an int (not a bool, not a string) from `minimum` to `maximum` inclusive."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a whole number" + (", without quotes" if _numeric(value) else ""))
        if maximum is not None and not minimum <= value <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum}")
        if value < minimum:
            raise ValueError(f"must be {minimum} or more")
        return value

    return parse


def _numeric(value: object) -> bool:
    return isinstance(value, str) and value.strip().isdecimal()


def count_or_all(value: object) -> int | None:
    """Parse a number of things to keep, 1 or more; None for `"all"`."""
    return None if value == "all" else whole(1)(value)


def seconds(minimum: float) -> Parser[float]:
    """Parse a finite number of seconds, `minimum` or more."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a number of seconds")
        if not math.isfinite(value) or value < minimum:
            raise ValueError(f"must be {minimum:g} s or more")
        return float(value)

    return parse


def flag(value: object) -> bool:
    """Parse True or False, or the strings `"True"` and `"False"`, the old launcher's form."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be True or False")


@dataclass(frozen=True)
class OneOf:
    """Accepts exactly one of `words`."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        raise ValueError("must be " + " or ".join(f'"{word}"' for word in self.words))


def choice(*words: str) -> OneOf:
    return OneOf(words)


def command(value: object) -> tuple[str, ...]:
    """Parse an argv: a list of strings, or one string, split into words by shell rules.

    No shell runs the command, so a string with `&&`, a pipe or a redirection is refused.
    """
    if isinstance(value, str):
        argv = shlex.split(value)
        if not _SHELL_WORDS.isdisjoint(argv):
            raise ValueError('runs without a shell; for shell syntax write ["sh", "-c", "..."]')
    elif isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        argv = list(value)
    else:
        raise ValueError("must be a string or a list of strings")
    if not argv or not argv[0]:
        raise ValueError("must not be empty")
    if any("\0" in word for word in argv):
        raise ValueError("must not contain NUL characters")
    return tuple(argv)


def environment(value: object) -> dict[str, str]:
    """Parse a mapping of environment variables. Numbers become strings; CLUSTERCTL_ names are refused."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a dictionary, such as {"NAME": "value"}')
    return {_variable(name): _variable_value(name, content) for name, content in value.items()}


def _variable(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not a valid environment variable name")
    if name.startswith("CLUSTERCTL_"):
        raise ValueError(f"{name} is set by clusterctl itself")
    return name


def _variable_value(name: object, content: object) -> str:
    if isinstance(content, bool) or not isinstance(content, str | int | float):
        raise ValueError(f"the value of {name} must be a string")
    if "\0" in str(content):
        raise ValueError(f"the value of {name} must not contain NUL characters")
    return str(content)


def local_path(value: object) -> Path:
    """Parse a path on this machine, as written; the loader resolves `~` and relative paths."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return Path(text(value))


def remote_root(value: object) -> str:
    """Parse a directory on the nodes: absolute, or starting with `~/`, which each node expands for itself.

    `{node}` in it stands for the id of the node.
    """
    path = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") and parts[:1] != ["~"]:
        raise ValueError("must be an absolute path or start with ~/")
    if ".." in parts:
        raise ValueError("must not contain ..")
    if not parts:
        raise ValueError("must not be the root of the file system")
    for word in re.findall(r"{\w*}", path):
        if word != "{node}":
            raise ValueError(f"only {{node}} stands for something here, not {word}")
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def strings(value: object) -> tuple[str, ...]:
    """Parse a list of strings; a single string counts as a list of one."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of strings")
    return tuple(text(word) for word in value)


def globs(value: object) -> tuple[str, ...]:
    """Parse file patterns that are relative to the workspace and stay inside it."""
    patterns = strings(value)
    for pattern in patterns:
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise ValueError(f"{pattern!r} must be relative to the workspace and stay inside it")
    return patterns


def interface(value: object) -> str:
    """Parse the name of a network interface, a subnet such as `10.0.0.0/24`, or an IP address."""
    name = text(value)
    if "/" in name or ":" in name:
        return _subnet(name)
    if re.search(r"\s", name):
        raise ValueError("must be the name of a network interface, such as eth0, or a subnet, such as 10.0.0.0/24")
    return name


def _subnet(name: str) -> str:
    try:
        ipaddress.ip_network(name, strict=False)
    except ValueError as exc:
        raise ValueError("must be an interface, such as eth0, or a subnet, such as 10.0.0.0/24") from exc
    return name
