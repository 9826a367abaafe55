"""The entries of HOSTS: the `Host` value available in conf.py, and the validation of the whole list."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clusterctl.config.carriers import carrier_name, parse_via
from clusterctl.config.endpoint import Endpoint, check_address, masked, parse_endpoint
from clusterctl.config.parsers import (
    Parser,
    environment,
    flag,
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
MOST_GPUS = 64  # of a host


@dataclass(frozen=True)
class Host:
    """One machine of HOSTS and its overrides. A plain string is short for `Host(string)`.

    `spec`      `user@host:port`; user and port are optional, an IPv6 address goes in brackets
    `name`      a unique name for `--only`, PSERVERS and TRAINERS, in addition to the host name
    `roles`     the roles allowed here: `"pserver"`, `"trainer"` or both
    `pservers`  the number of pservers here, overriding PSERVERS_PER_NODE; may be 0
    `trainers`  the number of trainers here, overriding TRAINERS_PER_NODE; may be 0
    `gpus`      the number of GPUs that the trainers here may use; 0 hides all; None leaves it to nvidia-smi
    `spare`     True: no process runs here until another node is lost and its processes move here
    `tags`      labels that `--only` accepts
    `env`       environment variables, overriding those of ENV; read-only; not in `repr` (secrets)
    `address`   the address that the other nodes use, overriding NIC
    `identity`  the SSH key, overriding IDENTITY_FILE
    `root_dir`  the ROOT_DIR of this host, for example when two hosts share a home directory
    `via`       what carries commands to this host, overriding VIA

    The constructor validates nothing, so that `load` can report the mistakes of all hosts together. `user`,
    `hostname` and `port` raise ConfigError if `spec` is malformed, which never happens to a Host in Settings.
    """

    spec: str
    _: KW_ONLY
    name: str | None = None
    roles: tuple[str, ...] = ROLES
    pservers: int | None = None
    trainers: int | None = None
    gpus: int | None = None
    spare: bool = False
    tags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    address: str | None = None
    identity: Path | None = None
    root_dir: str | None = None
    via: str | tuple[str, ...] | None = None

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
        """The login name, or None to leave it to ~/.ssh/config."""
        return self._endpoint.user

    @property
    def hostname(self) -> str:
        """The host name or address that SSH connects to, without brackets."""
        return self._endpoint.host

    @property
    def port(self) -> int | None:
        """The SSH port, or None to leave it to ~/.ssh/config and the default of 22."""
        return self._endpoint.port


def read_hosts(
    value: object, root_dir: str, via: str | tuple[str, ...]
) -> tuple[tuple[Host, ...], list[tuple[int | None, str]]]:
    """Return the hosts in a raw HOSTS value, and the problems as (index of the entry or None for all, message).

    `root_dir` and `via` apply to the hosts without their own.
    """
    if not isinstance(value, list | tuple):
        return (), [(None, "must be a list of hosts")]
    hosts: list[Host] = []
    problems: list[tuple[int | None, str]] = []
    seen: dict[object, int] = {}
    for index, entry in enumerate(value):
        host, errors = _read_host(entry)
        if host is not None and not errors:
            hosts.append(host)
            errors = [*_ssh_only(host, host.via or via), *_not_spare(host, index)]
            known = _identities(host, own_root(host, root_dir, index), host.via or via)
            errors += [f"duplicates HOSTS[{seen[key]}]{_remedy(key)}" for key in known if key in seen]
            seen.update(dict.fromkeys(known, index))
        problems += [(index, f"{_entry(entry)}: {message}") for message in errors]
    return tuple(hosts), problems


def _read_host(entry: object) -> tuple[Host | None, list[str]]:
    """Return the validated host, or the errors of its fields."""
    host = Host(entry) if isinstance(entry, str) else entry
    if not isinstance(host, Host):
        return None, ['must be a string "user@host:port" or a Host(...)']
    values: dict[str, Any] = {}
    problems = []
    for key, parse in _FIELDS.items():
        try:
            values[key] = parse(getattr(host, key))
        except ValueError as exc:
            value = "" if key == "env" else shown(getattr(host, key))  # env may contain secrets
            problems.append(str(exc) if key == "spec" else f"{key}{value}: {exc}")
    return (None, problems) if problems else (replace(host, **values), [])


def own_root(host: Host, root_dir: str, id_: int) -> str:
    """Return the ROOT_DIR of the host with this node id, given that of the other hosts."""
    return (host.root_dir or root_dir).replace("{node}", str(id_))


def _identities(host: Host, root_dir: str, via: str | tuple[str, ...]) -> list[object]:
    """Return the keys that must be unique: the location on disk (account and directory), and the name."""
    location: tuple[object, ...] = (host.user, host.hostname.lower(), host.port or 22, root_dir)
    if via == "local":
        location = ("local", root_dir)
    return [location] if host.name is None else [location, host.name]


def _remedy(key: object) -> str:
    is_local = isinstance(key, tuple) and key[0] == "local"
    return ', which is this machine too; write ROOT_DIR = "~/clusterctl/node{node}"' if is_local else ""


def _ssh_only(host: Host, via: str | tuple[str, ...]) -> list[str]:
    """Return a problem for each part of a host that only SSH could use."""
    given = {"a user": host.user, "a port": host.port, "identity": host.identity}
    used = [name for name, value in given.items() if value is not None]
    if via == "ssh" or not used:
        return []
    instead = "leave it out" if isinstance(via, str) else "write it into the words of VIA"
    need = f"{' and '.join(used)} {'needs' if len(used) == 1 else 'need'}"
    return [f'{need} VIA = "ssh", but this host is reached by {carrier_name(via)}; {instead}']


def _not_spare(host: Host, index: int) -> list[str]:
    """Return why a host cannot be a spare, if it is to be one."""
    if host.spare and index == 0:
        return ["the first host leads the run, so it cannot be a spare"]
    counted = [name for name in ("pservers", "trainers") if host.spare and getattr(host, name) is not None]
    return [f"a spare has no processes of its own; leave out {' and '.join(counted)}="] if counted else []


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


def _name(value: object) -> str:
    word = text(value)
    if not re.fullmatch(r"\w[\w.-]*", word):
        raise ValueError("must consist of letters, digits, dots, dashes and underscores")
    if re.fullmatch(r"node\d+", word):
        raise ValueError("must not look like a node label, such as node0")
    return word


def _tags(value: object) -> tuple[str, ...]:
    return tuple(_name(tag) for tag in strings(value))


def _address(value: object) -> str:
    return check_address(text(value))


def any_hosts(value: object) -> Any:
    """Return HOSTS unchanged; `read_hosts` checks it as a whole."""
    return value


def some_hosts(value: object) -> int | tuple[str, ...]:
    """Parse a number of hosts, or a list of them: host names, `Host` names, or entries copied from HOSTS."""
    if isinstance(value, int):
        return whole(0)(value)
    if not isinstance(value, list | tuple):
        raise ValueError("must be a number of hosts or a list of them")
    return strings([entry.spec if isinstance(entry, Host) else entry for entry in value])


_FIELDS: dict[str, Parser[Any]] = {
    "spec": _spec,
    "name": optional(_name),
    "roles": _roles,
    "pservers": optional(whole(0)),
    "trainers": optional(whole(0)),
    "gpus": optional(whole(0, MOST_GPUS)),
    "spare": flag,
    "tags": _tags,
    "env": environment,
    "address": optional(_address),
    "identity": optional(local_path),
    "root_dir": optional(remote_root),
    "via": optional(parse_via),
}
