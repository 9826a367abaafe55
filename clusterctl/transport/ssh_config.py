"""The ssh_config options of a host: parsed as `ssh` does, or taken from `ssh -G` where only `ssh` can decide.

Nearly all files consist of `Host` blocks, and parsing those here saves 5 to 10 ms per host. Conditions on the state of
this machine (`Match exec`, `Match localnetwork`, `CanonicalizeHostname`, ...) are left to `ssh`.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterctl.errors import ConfigError
from clusterctl.transport.known_hosts import matches_pattern

MAX_INCLUDE_DEPTH = 16
USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
ASK_SSH_S = 15.0
Options = dict[str, list[str]]

# The identities that `ssh -G` lists for a host without configured ones.
_SSH_DEFAULT_IDENTITY = re.compile(r"~/\.ssh/id_(rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss)")
_SEVERAL = ("identityfile", "certificatefile")
_CRITERIA = ("host", "originalhost", "user", "localuser")


class Condition(NamedTuple):
    """A `Host` or `Match` line: the settings below it apply if all its words match."""

    keyword: str
    words: tuple[str, ...]


class Directive(NamedTuple):
    """A line of ssh_config with its enclosing blocks; a line of an included file may have several."""

    conditions: tuple[Condition, ...]
    key: str  # in lower case
    value: str


class OnlySshKnowsError(Exception):
    """The file contains a condition that only `ssh` can evaluate."""


class SshConfig:
    """The user's and the system's ssh_config, or the one that SSH_CONFIG names. Read once.

    The settings of plain names, such as a block for each of 1,000 nodes, are looked up by name.
    """

    def __init__(self, chosen: str | Path | None) -> None:
        self._file = None if chosen is None else Path(chosen).expanduser()
        if self._file is not None and not self._file.is_file():
            raise ConfigError(f"SSH_CONFIG names {self._file}, which is not a file")
        paths = [self._file] if self._file else [path.expanduser() for path in (USER_CONFIG, SYSTEM_CONFIG)]
        self._settings = [setting for path in paths if path.is_file() for setting in _read(path, path.parent, (), 0)]
        self._of_name: dict[str, list[int]] = {}
        self._others: list[int] = []
        for number, (conditions, _, _) in enumerate(self._settings):
            names = _plain_names(conditions)
            for name in names:
                self._of_name.setdefault(name, []).append(number)
            if not names:
                self._others.append(number)

    def lookup(self, alias: str, user: str | None, port: int | None) -> Options:
        """Return the values of each option for a host; the first value wins and tokens are not expanded.

        `user` and `port` override the file. Raises ConfigError if `ssh` rejects the file, or is needed but missing.
        """
        try:
            return self.read(alias, user, port)
        except OnlySshKnowsError as exc:
            return self.ask_ssh(alias, user, port, str(exc))

    def read(self, alias: str, user: str | None, port: int | None) -> Options:
        """Return the options according to our own parser. Raises OnlySshKnowsError."""
        options: Options = {"user": [user]} if user else {}
        if port:
            options["port"] = [str(port)]
        for number in sorted([*self._others, *self._of_name.get(alias, ())]):
            conditions, key, value = self._settings[number]
            if not all(_holds(condition, alias, options) for condition in conditions):
                continue
            if key == "canonicalizehostname" and value.lower() in ("yes", "always"):
                raise OnlySshKnowsError("CanonicalizeHostname")
            if key in _SEVERAL:
                options.setdefault(key, []).append(value)
            else:
                options.setdefault(key, [value])
        return options

    def ask_ssh(self, alias: str, user: str | None, port: int | None, why: str) -> Options:
        """Return the options according to the `ssh` program."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise ConfigError(f"{why} in ssh_config needs the ssh program, which is not on this machine")
        file = ["-F", str(self._file)] if self._file else []
        given = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
        argv = [ssh, "-G", *file, *given, "--", alias]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="surrogateescape", timeout=ASK_SSH_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            message = f"timed out after {ASK_SSH_S:g} s: {shlex.join(argv)}"
            raise ConfigError(message, hint="look for a Match exec that hangs") from exc
        if done.returncode:
            raise ConfigError(f"ssh rejected its configuration for {alias}: {done.stderr.strip()}")
        return _parse_ssh_output(done.stdout)


def _plain_names(conditions: Sequence[Condition]) -> frozenset[str]:
    """Return the names to which a setting is limited, if there is no pattern among them; else none."""
    if len(conditions) != 1 or conditions[0].keyword != "host":
        return frozenset()
    words = conditions[0].words
    return frozenset() if any(char in word for word in words for char in "*?!") else frozenset(words)


def _parse_ssh_output(text: str) -> Options:
    options: Options = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    if all(_SSH_DEFAULT_IDENTITY.fullmatch(path) for path in options.get("identityfile", [])):
        options.pop("identityfile", None)
    return options


def _read(path: Path, base: Path, outer: tuple[Condition, ...], depth: int) -> Iterator[Directive]:
    if depth > MAX_INCLUDE_DEPTH:
        raise ConfigError(f"{path}: Include is nested too deeply", hint="look for a file that includes itself")
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    conditions = outer
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)", line)
        if match is None:
            continue
        key, value = match[1].lower(), match[2]
        if key in ("host", "match"):
            conditions = (*outer, Condition(key, _arguments(value, path, number)))
        elif key == "include":
            for pattern in _arguments(value, path, number):
                for included in _glob(pattern, base):
                    yield from _read(included, base, conditions, depth + 1)
        else:
            yield Directive(conditions, key, value if key.endswith("command") else _unquoted(value))


def _arguments(value: str, path: Path, number: int) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value, comments=True))
    except ValueError as exc:
        raise ConfigError(f"{path}:{number}: {exc}") from exc


def _unquoted(value: str) -> str:
    """Return the value without a trailing comment and without quotes around the whole."""
    value = re.sub(r"""\s+#[^"]*$""", "", value)
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' and '"' not in value[1:-1] else value


def _glob(pattern: str, base: Path) -> list[Path]:
    path = base / Path(pattern).expanduser()
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _holds(condition: Condition, alias: str, options: Options) -> bool:
    if condition.keyword == "host":
        return _in(condition.words, alias)
    words = iter(condition.words)
    return all(_criterion(word, words, alias, options) for word in words)


def _criterion(word: str, words: Iterator[str], alias: str, options: Options) -> bool:
    name, equals, value = word.partition("=")
    wanted = not name.startswith("!")
    name = name.removeprefix("!").lower()
    if name == "all":
        return wanted
    if name not in _CRITERIA:
        raise OnlySshKnowsError(f"Match {name}")
    value = value if equals else next(words, "")
    seen = {
        "host": options.get("hostname", [alias])[0].replace("%h", alias),
        "originalhost": alias,
        "user": options["user"][0] if "user" in options else local_user(),
        "localuser": local_user(),
    }
    return _in(value.split(","), seen[name]) == wanted


def _in(patterns: Sequence[str], name: str) -> bool:
    """Return True if a pattern matches and no negated (`!`) pattern does."""
    if any(matches_pattern(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(matches_pattern(pattern, name) for pattern in patterns if not pattern.startswith("!"))


@functools.cache
def local_user() -> str:
    """Return the name of the user on this machine, or the uid of a user without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
