"""SSH targets: a node's conf.py entry completed from ssh_config, as `ssh` does."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from clusterctl.errors import ConfigError
from clusterctl.transport.known_hosts import known_hosts_name
from clusterctl.transport.ssh_config import Options, SshConfig, local_user

USER_KNOWN_HOSTS = Path("~/.ssh/known_hosts")
SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_ALIVE = (10.0, 3)


class Destination(Protocol):
    """The attributes of a node that the transport uses; `clusterctl.inventory.Node` has them."""

    @property
    def label(self) -> str: ...
    @property
    def ssh_user(self) -> str | None: ...
    @property
    def ssh_host(self) -> str: ...
    @property
    def ssh_port(self) -> int | None: ...
    @property
    def identity(self) -> str | Path | None: ...
    @property
    def via(self) -> str | tuple[str, ...]: ...
    @property
    def carrier(self) -> str: ...
    @property
    def leaves_nothing(self) -> bool: ...


class SshSettings(Protocol):
    """The settings that the transport uses. A path of None stands for the default of `ssh`."""

    @property
    def ssh_config(self) -> str | Path | None: ...
    @property
    def identity_file(self) -> str | Path | None: ...
    @property
    def known_hosts(self) -> str | Path | None: ...
    @property
    def strict_host_keys(self) -> bool: ...


@dataclass(frozen=True)
class Target:
    """One SSH server, fully resolved. `via` is the jump host in front of it."""

    label: str = field(compare=False)  # the node to name in messages; two nodes may share a jump host
    host: str
    port: int
    user: str
    identities: tuple[Path, ...]
    use_agent: bool
    explicit: bool  # the identities were set explicitly, so a missing one is an error
    key_name: str  # its name in known_hosts
    known_hosts: tuple[Path, ...]  # the first one is where keys are recorded
    via: Target | None = None
    proxy_command: str | None = None
    alive: tuple[float, int] = DEFAULT_ALIVE  # seconds between probes of a silent peer, and how many may go unanswered
    is_jump: bool = field(default=False, compare=False)

    @property
    def address(self) -> str:
        """Host and port for messages, with "jump host" in front if it is one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'jump host ' if self.is_jump else ''}{host}:{self.port}"

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


class Resolver:
    """Turns nodes into targets. Reads ssh_config once, on first use. Thread-safe."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._config: SshConfig | None = None
        self._known: dict[tuple[object, ...], Target] = {}

    def resolve(self, node: Destination) -> Target:
        """Return the node's target. Raises ConfigError if ssh_config is unreadable or invalid."""
        key = (node.label, node.ssh_host, node.ssh_user, node.ssh_port, node.identity)
        with self._lock:
            if self._config is None:
                self._config = SshConfig(self._settings.ssh_config)
            config, target = self._config, self._known.get(key)
        if target is None:
            target = self._known[key] = self._target(config, *key, seen=())
        return target

    def _target(
        self,
        config: SshConfig,
        label: str,
        alias: str,
        user: str | None,
        port: int | None,
        identity: str | Path | None,
        *,
        seen: tuple[str, ...],
    ) -> Target:
        options = config.lookup(alias, user, port)
        words = HostOptions(alias, options)
        configured = [words.path(path) for path in options.get("identityfile", [])]
        # IDENTITY_FILE applies to the nodes, and to jump hosts without their own key.
        named = None if seen and configured else identity or self._settings.identity_file
        identities = [str(named)] if named else configured or list(DEFAULT_IDENTITIES)
        via, proxy_command = self._proxy(config, label, alias, options, words, seen)
        key_alias = words.value("hostkeyalias").lower()
        return Target(
            label=label,
            host=words.host,
            port=words.port,
            user=words.user,
            identities=tuple(Path(path).expanduser() for path in identities if path.lower() != "none"),
            use_agent=_wants_agent(words),
            explicit=bool(named),
            key_name=key_alias or known_hosts_name(words.host, words.port),
            known_hosts=self._known_hosts(words),
            via=via,
            proxy_command=proxy_command,
            alive=_alive(words, alias),
            is_jump=bool(seen),
        )

    def _known_hosts(self, words: HostOptions) -> tuple[Path, ...]:
        chosen = self._settings.known_hosts
        configured = [words.expand(path) for path in shlex.split(words.value("userknownhostsfile"))]
        users = [str(chosen)] if chosen else configured or [str(USER_KNOWN_HOSTS)]
        return (*(Path(path).expanduser() for path in users), SYSTEM_KNOWN_HOSTS)

    def _proxy(
        self, config: SshConfig, label: str, alias: str, options: Options, words: HostOptions, seen: tuple[str, ...]
    ) -> tuple[Target | None, str | None]:
        # As with ssh, the first of the two wins.
        first = next((key for key in options if key in ("proxyjump", "proxycommand")), None)
        value = words.value(first) if first else ""
        if not value or value.lower() == "none":
            return None, None
        if first == "proxycommand":
            return None, words.expand(value)
        if alias in seen:
            raise ConfigError(
                f"ssh_config routes {alias} through itself (ProxyJump {value})",
                node=label,
                hint="exclude the jump host from the Host pattern that sets ProxyJump",
            )
        hops = [hop.strip() for hop in words.expand(value).split(",")]
        # Wildcards commonly match the jump host too; as with ssh, a host is not its own jump host.
        if _split_hop(hops[-1])[1] == alias:
            return None, None
        return self._chain(config, label, hops, (*seen, alias)), None

    def _chain(self, config: SshConfig, label: str, hops: Sequence[str], seen: tuple[str, ...]) -> Target:
        via: Target | None = None
        for hop in hops:
            user, host, port = _split_hop(hop)
            target = self._target(config, label, host, user, port, None, seen=seen)
            via = replace(target, via=via) if via is not None else target
        assert via is not None
        return via


class HostOptions:
    """The options of one host, and the values of the tokens and variables in them."""

    def __init__(self, alias: str, options: Options) -> None:
        self._options = options
        self._tokens = {"%": "%", "h": alias, "n": alias}
        self.host = self.expand(self.value("hostname") or alias)
        self.port = _port(self.value("port") or "22", alias)
        self.user = self.value("user") or local_user()
        self._tokens |= {"h": self.host, "p": str(self.port), "r": self.user, "u": local_user()}
        self._tokens |= {"d": str(Path.home()), "i": str(os.getuid()), "k": self.value("hostkeyalias") or alias}

    def value(self, key: str) -> str:
        """Return the option's value, unexpanded; empty if it is not set."""
        return self._options.get(key, [""])[0]

    def expand(self, value: str) -> str:
        """Return the value with its tokens expanded. Raises ConfigError for an unknown token."""
        return re.sub("%(.?)", self._token, value) if "%" in value else value

    def path(self, value: str) -> str:
        """Expand a path, which may contain variables too."""
        return self.expand(os.path.expandvars(value) if "${" in value else value)

    def _token(self, match: re.Match[str]) -> str:
        name = match[1]
        if name in ("l", "L", "C"):
            self._add_machine()
        if name not in self._tokens:
            raise ConfigError(f"ssh_config has the unsupported token %{name} in {match.string!r}")
        return self._tokens[name]

    def _add_machine(self) -> None:
        full = socket.gethostname()
        parts = (full, self.host, str(self.port), self.user, _jump_host(self.value("proxyjump")))
        digest = hashlib.sha1("".join(parts).encode(), usedforsecurity=False).hexdigest()
        self._tokens |= {"l": full, "L": full.split(".")[0], "C": digest}


def _alive(words: HostOptions, alias: str) -> tuple[float, int]:
    """Return the seconds between probes of a silent peer, and how many may go unanswered.

    An interval of 0 switches probes off in ssh; here it selects the default.
    """
    interval, count = words.value("serveraliveinterval") or "0", words.value("serveralivecountmax") or "3"
    if not (interval.isdigit() and count.isdigit()):
        raise ConfigError(f"ssh_config sets ServerAlive values for {alias} that are not numbers: {interval}, {count}")
    return (float(interval), int(count)) if int(interval) else DEFAULT_ALIVE


def _jump_host(jump: str) -> str:
    return _split_hop(jump.rsplit(",", maxsplit=1)[-1])[1] if jump else ""


def _wants_agent(words: HostOptions) -> bool:
    only = words.value("identitiesonly").lower() == "yes"
    return not only and words.value("identityagent").lower() != "none"


def _split_hop(hop: str) -> tuple[str | None, str, int | None]:
    hop = hop.removeprefix("ssh://")
    user, at, address = hop.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", address)
    plain = re.fullmatch(r"([^:]+)(?::(\d+))?", address)
    match = bracketed or plain
    if match is None:
        return (user if at else None), address, None
    return (user if at else None), match[1], int(match[2]) if match[2] else None


def _port(text: str, alias: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"ssh_config sets an invalid port for {alias}: {text!r}")
    return int(text)
