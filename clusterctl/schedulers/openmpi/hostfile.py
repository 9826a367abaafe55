"""Open MPI's hostfiles, as far as they say something about a host for SSH. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.config import Host, Settings
from clusterctl.config.endpoint import Endpoint, parse_endpoint
from clusterctl.config.host_sources import OpenMpiHosts
from clusterctl.config.hosts import read_hosts
from clusterctl.errors import ConfigError

# As in the lexer of Open MPI 4.1; `port` is that of version 5.
SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("slots", "cpu", "count"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max", "cpu_max", "cpu-max"), "max_slots"),
    **dict.fromkeys(("user", "username", "user_name", "user-name"), "user"),
    "port": "port",
}
COMMENT = re.compile(r"#.*|//.*")


@dataclass(frozen=True)
class HostLine:
    """A host and the line of its first mention. `slots` are those of all lines that name it; one without counts as 1.

    A `max_slots`, a `user` or a `port` of None is not given.
    """

    line: int
    host: str
    slots: int
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None

    @property
    def endpoint(self) -> str:
        """The host as in HOSTS."""
        return str(Endpoint(self.user, self.host, self.port))

    def joined(self, other: HostLine) -> HostLine:
        """Return this host with a later line about it. Raises ValueError if they contradict each other."""
        for name in ("user", "port"):
            if getattr(other, name) not in (None, getattr(self, name)):
                raise ValueError(f"{name} of {self.host} differs from line {self.line}")
        limits = [limit for limit in (self.max_slots, other.max_slots) if limit is not None]
        most = max(limits) if limits else None
        return HostLine(self.line, self.host, self.slots + other.slots, most, self.user, self.port)


class HostfileError(ValueError):
    """A line that is wrong, or that means nothing over SSH. `hint` may be None."""

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


def parse(text: str) -> list[HostLine]:
    """Return the hosts in order of their first mention. Raises HostfileError for the first line that is wrong."""
    hosts: dict[str, HostLine] = {}
    for number, words in _lines(text):
        one = _host(number, words)
        key = one.host.lower()
        try:
            hosts[key] = hosts[key].joined(one) if key in hosts else one
        except ValueError as exc:
            raise HostfileError(number, str(exc)) from exc
    for one in hosts.values():
        if one.max_slots is not None and one.slots > one.max_slots:
            raise HostfileError(one.line, f"{one.host} has {one.slots} slots, and max_slots={one.max_slots}")
    return list(hosts.values())


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that has any; white space around `=` does not count."""
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", COMMENT.sub("", line)).split()
        if words:
            yield number, words


def _host(number: int, words: list[str]) -> HostLine:
    name = words[0]
    if name.startswith(("^", "+")) or name == "rank" or "=" in name:
        hint = "list the hosts themselves, one on a line, such as node1 slots=4"
        raise HostfileError(number, f"{' '.join(words)!r} names no host", hint)
    given = _values(number, words[1:])
    user, _, host = name.rpartition("@")
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    user = user or given.get("user", "")
    try:
        endpoint = parse_endpoint(f"{user}@{address}" if user else address)
        slots = _count(given, "slots", 1)
        return HostLine(number, endpoint.host, slots, _limit(given), endpoint.user, _port(given) or endpoint.port)
    except ValueError as exc:
        raise HostfileError(number, str(exc)) from exc


def _values(number: int, words: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        spelling, equals, value = word.partition("=")
        name = SPELLINGS.get(spelling.lower())
        if name is None or not equals:
            hint = "known are slots=, max_slots=, user= and port=; what else SSH needs belongs into ~/.ssh/config"
            raise HostfileError(number, f"{word!r} is not understood", hint)
        if name in values:
            raise HostfileError(number, f"{name}= is given twice")
        values[name] = value
    return values


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError(f"{name}={text}: must be a whole number")
    return int(text)


def _limit(given: Mapping[str, str]) -> int | None:
    return _count(given, "max_slots", 0) if "max_slots" in given else None


def _port(given: Mapping[str, str]) -> int | None:
    if "port" not in given:
        return None
    port = _count(given, "port", 0)
    if not 1 <= port <= 65535:
        raise ValueError("port must be 1 to 65535")
    return port


def with_hosts(settings: Settings, source: OpenMpiHosts, environ: Mapping[str, str]) -> Settings:
    """Return the settings with the hosts of the file, in its order.

    If conf.py sets TRAINERS_PER_NODE, that counts, not the slots. Raises ConfigError with the file and the line.
    """
    path = _place(settings, str(source.file), environ)
    try:
        lines = parse(path.read_text(encoding="utf-8"))
    except OSError as exc:
        hint = "a relative path starts at the directory of conf.py"
        raise ConfigError(f"{settings.place('HOSTS')}{path}: {exc.strerror}", hint=hint) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{settings.place('HOSTS')}{path}: not a text file") from exc
    except HostfileError as exc:
        raise ConfigError(f"{path}:{exc.line}: {exc}", hint=exc.hint) from exc
    if not lines:
        raise ConfigError(f"{path}: names no hosts", hint="write one on each line, such as node1 slots=4")
    counts = "TRAINERS_PER_NODE" not in {*settings.lines, *settings.chosen}
    entries = [Host(one.endpoint, trainers=one.slots if counts else None) for one in lines]
    hosts, problems = read_hosts(entries, settings.root_dir, settings.via)
    if problems:
        raise ConfigError("\n".join(_located(path, lines, *problem) for problem in problems))
    return replace(settings, hosts=hosts)


def _place(settings: Settings, file: str, environ: Mapping[str, str]) -> Path:
    """Return the path of the hostfile; a relative one starts at the directory of conf.py."""
    base = settings.source.absolute().parent if settings.source else Path.cwd()
    if file.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], file[2:])
    return base / file


def _located(path: Path, lines: list[HostLine], index: int | None, message: str) -> str:
    return f"{path}: {message}" if index is None else f"{path}:{lines[index].line}: {message}"
