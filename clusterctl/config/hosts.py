"""The entries of HOSTS: the `Host` value that conf.py may use, and the check of the whole list."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clusterctl.config.endpoint import Endpoint, check_address, masked, parse_endpoint
from clusterctl.config.parsers import (
    Parser,
    environment,
    local_path,
    optional,
    remote_root,
    shown,
    strings,
    text,
    whole,
)
from clusterctl.errors import ConfigError

ROLES = ("pserver", "trainer")


@dataclass(frozen=True)
class Host:
    """One machine of HOSTS, with what differs from the other machines. A plain string means `Host(string)`.

    `spec`      `user@host:port`; user and port may be missing, IPv6 goes in brackets
    `name`      what `--only`, PSERVERS and TRAINERS may call it, beside its host name; unique
    `roles`     what may run here: `"pserver"`, `"trainer"` or both
    `pservers`  how many pservers run here, instead of PSERVERS_PER_NODE; 0 for none
    `trainers`  how many trainers run here, instead of TRAINERS_PER_NODE; 0 for none
    `tags`      words that `--only` understands
    `env`       its environment variables, over those of ENV; not to be changed; not in `repr` (secrets)
    `address`   the address at which the other nodes reach it, instead of looking for NIC
    `identity`  the SSH key for it, instead of IDENTITY_FILE
    `root_dir`  its ROOT_DIR, for example when two hosts share a home directory

    Making one checks nothing, so that `load` can report the mistakes of all hosts together; `user`,
    `hostname` and `port` raise ConfigError when `spec` is malformed, which no Host of Settings is.
    """

    spec: str
    _: KW_ONLY
    name: str | None = None
    roles: tuple[str, ...] = ROLES
    pservers: int | None = None
    trainers: int | None = None
    tags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    address: str | None = None
    identity: Path | None = None
    root_dir: str | None = None

    def __post_init__(self) -> None:
        for key in ("roles", "tags"):
            object.__setattr__(self, key, _as_tuple(getattr(self, key)))

    @cached_property
    def _endpoint(self) -> Endpoint:
        try:
            return parse_endpoint(text(self.spec))
        except ValueError as exc:
            raise ConfigError(f"host {masked(str(self.spec))!r}: {exc}") from exc

    @property
    def user(self) -> str | None:
        """The login name, or None: left to ~/.ssh/config."""
        return self._endpoint.user

    @property
    def hostname(self) -> str:
        """The name or address that SSH connects to, without brackets."""
        return self._endpoint.host

    @property
    def port(self) -> int | None:
        """The SSH port, or None: left to ~/.ssh/config, else 22."""
        return self._endpoint.port


def read_hosts(value: object, root_dir: str) -> tuple[tuple[Host, ...], list[tuple[int | None, str]]]:
    """The hosts of a raw HOSTS value, and what is wrong: (index of the entry or None for all, message)."""
    if not isinstance(value, list | tuple):
        return (), [(None, "must be a list of hosts")]
    hosts: list[Host] = []
    problems: list[tuple[int | None, str]] = []
    seen: dict[object, int] = {}
    for index, entry in enumerate(value):
        host, wrong = _read_host(entry)
        if host is not None and not wrong:
            hosts.append(host)
            wrong = [f"is the same as HOSTS[{seen[key]}]" for key in _identities(host, root_dir) if key in seen]
            seen.update(dict.fromkeys(_identities(host, root_dir), index))
        problems += [(index, f"{_entry(entry)}: {message}") for message in wrong]
    return tuple(hosts), problems


def _read_host(entry: object) -> tuple[Host | None, list[str]]:
    """The checked host, or what is wrong with each of its fields."""
    host = Host(entry) if isinstance(entry, str) else entry
    if not isinstance(host, Host):
        return None, ['must be a string "user@host:port" or a Host(...)']
    values: dict[str, Any] = {}
    problems = []
    for key, parse in _FIELDS.items():
        try:
            values[key] = parse(getattr(host, key))
        except ValueError as exc:
            given = "" if key == "env" else shown(getattr(host, key))  # env may hold secrets
            problems.append(str(exc) if key == "spec" else f"{key}{given}: {exc}")
    return (None, problems) if problems else (replace(host, **values), [])


def _identities(host: Host, root_dir: str) -> list[object]:
    """What must be unique: the place on the disk (the same account and directory), and the name."""
    place = (host.user, host.hostname.lower(), host.port or 22, host.root_dir or root_dir)
    return [place] if host.name is None else [place, host.name]


def _entry(entry: object) -> str:
    spec = entry.spec if isinstance(entry, Host) else entry
    return reprlib.repr(masked(spec) if isinstance(spec, str) else spec)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _spec(value: object) -> str:
    return str(parse_endpoint(text(value)))


def _roles(value: object) -> tuple[str, ...]:
    roles = strings(value)
    if not roles or not set(roles) <= set(ROLES):
        raise ValueError('must be "pserver", "trainer" or both')
    return tuple(role for role in ROLES if role in roles)


def _word(value: object) -> str:
    word = text(value)
    if not re.fullmatch(r"\w[\w.-]*", word):
        raise ValueError("must be letters, digits, dots, dashes and underscores")
    if re.fullmatch(r"node\d+", word):
        raise ValueError("would be mistaken for the label of a node")
    return word


def _tags(value: object) -> tuple[str, ...]:
    return tuple(_word(tag) for tag in strings(value))


def _address(value: object) -> str:
    return check_address(text(value))


def some_hosts(value: object) -> int | tuple[str, ...]:
    """A number of hosts, or a list of them: host names, names, or the very entries of HOSTS."""
    if isinstance(value, int):
        return whole(0)(value)
    if not isinstance(value, list | tuple):
        raise ValueError("must be a number of hosts or a list of them")
    return strings([entry.spec if isinstance(entry, Host) else entry for entry in value])


_FIELDS: dict[str, Parser[Any]] = {
    "spec": _spec,
    "name": optional(_word),
    "roles": _roles,
    "pservers": optional(whole(0)),
    "trainers": optional(whole(0)),
    "tags": _tags,
    "env": environment,
    "address": optional(_address),
    "identity": optional(local_path),
    "root_dir": optional(remote_root),
}
