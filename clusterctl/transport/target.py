"""Where a node really is: its conf.py entry completed by ssh_config, as `ssh` would do it."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from clusterctl.errors import ConfigError
from clusterctl.transport.hostkeys import known_hosts_name

MAX_INCLUDE_DEPTH = 16
USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
USER_KNOWN_HOSTS = Path("~/.ssh/known_hosts")
SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


class Node(Protocol):
    """What the transport needs to know of a node; `clusterctl.inventory.Node` has it."""

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


class SshSettings(Protocol):
    """What the transport needs of the settings. A path of None means what `ssh` would use."""

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
    """One SSH server to connect to, with everything decided. `via` is the jump host before it."""

    label: str = field(compare=False)  # whom to name in messages; two nodes may share a jump host
    host: str
    port: int
    user: str
    identities: tuple[Path, ...]
    use_agent: bool
    explicit: bool  # the identities were named by someone, so not having one is an error
    key_name: str  # its name in known_hosts
    known_hosts: tuple[Path, ...]  # the first one is where keys are recorded
    via: Target | None = None
    proxy_command: str | None = None
    is_jump: bool = field(default=False, compare=False)

    @property
    def address(self) -> str:
        """Host and port for messages, called a jump host if it is one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'jump host ' if self.is_jump else ''}{host}:{self.port}"

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


class Resolver:
    """Turns nodes into targets. Reads ssh_config once, at the first use; safe from several threads."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._text: str | None = None

    def resolve(self, node: Node) -> Target:
        """The node's target. Raises ConfigError if ssh_config cannot be read or makes no sense."""
        return self._target(node.label, node.ssh_host, node.ssh_user, node.ssh_port, node.identity, seen=())

    def _target(
        self,
        label: str,
        alias: str,
        user: str | None,
        port: int | None,
        identity: str | Path | None,
        *,
        seen: tuple[str, ...],
    ) -> Target:
        options = self._lookup(alias, user, port)
        host = options.get("hostname", alias)
        port = _port(options.get("port", "22"), alias)
        configured = options.get("identityfile", [])
        # IDENTITY_FILE is for the nodes, and for jump hosts that have no key of their own.
        named = None if seen and configured else identity or self._settings.identity_file
        identities = [str(named)] if named else list(configured or DEFAULT_IDENTITIES)
        via, proxy_command = self._proxy(label, alias, options, seen)
        return Target(
            label=label,
            host=host,
            port=port,
            user=options.get("user") or getpass.getuser(),
            identities=tuple(Path(path).expanduser() for path in identities),
            use_agent=_wants_agent(options),
            explicit=bool(named),
            key_name=options.get("hostkeyalias", "").lower() or known_hosts_name(host, port),
            known_hosts=self._known_hosts(options),
            via=via,
            proxy_command=proxy_command,
            is_jump=bool(seen),
        )

    def _known_hosts(self, options: dict[str, Any]) -> tuple[Path, ...]:
        chosen = self._settings.known_hosts
        configured = shlex.split(options.get("userknownhostsfile", ""))
        users = [str(chosen)] if chosen else configured or [str(USER_KNOWN_HOSTS)]
        return (*(Path(path).expanduser() for path in users), SYSTEM_KNOWN_HOSTS)

    def _proxy(
        self, label: str, alias: str, options: dict[str, Any], seen: tuple[str, ...]
    ) -> tuple[Target | None, str | None]:
        jump = options.get("proxyjump")
        if not jump or jump.lower() == "none":
            return None, options.get("proxycommand")
        if alias in seen:
            raise ConfigError(
                f"ssh_config sends {alias} through itself (ProxyJump {jump})",
                node=label,
                hint="exclude the jump host from the Host pattern that sets ProxyJump",
            )
        hops = [hop.strip() for hop in jump.split(",")]
        # Wildcards commonly match the jump host too; like ssh, a host is not its own jump host.
        if _split_hop(hops[-1])[1] == alias:
            return None, None
        return self._chain(label, hops, (*seen, alias)), None

    def _chain(self, label: str, hops: Sequence[str], seen: tuple[str, ...]) -> Target:
        via: Target | None = None
        for hop in hops:
            user, host, port = _split_hop(hop)
            target = self._target(label, host, user, port, None, seen=seen)
            via = replace(target, via=via) if via is not None else target
        assert via is not None
        return via

    def _lookup(self, alias: str, user: str | None, port: int | None) -> dict[str, Any]:
        import paramiko

        if self._text is None:
            self._text = self._read()
        # What conf.py says comes first, so that it wins and %p and %r are expanded from it.
        ours = (f"Port {port}\n" if port else "") + (f"User {user}\n" if user else "")
        try:
            return dict(paramiko.SSHConfig.from_text(f"{ours}Host *\n{self._text}").lookup(alias))
        except (paramiko.SSHException, ValueError, KeyError) as exc:
            raise ConfigError(f"cannot apply ssh_config to {alias}: {exc}", hint="compare `ssh -G`") from exc

    def _read(self) -> str:
        chosen = self._settings.ssh_config
        if chosen is not None:
            path = Path(chosen).expanduser()
            if not path.is_file():
                raise ConfigError(f"SSH_CONFIG names {path}, which is not a file")
            return _with_includes(path, path.parent)
        paths = [path.expanduser() for path in (USER_CONFIG, SYSTEM_CONFIG)]
        return "\nHost *\n".join(_with_includes(path, path.parent) for path in paths if path.is_file())


def _wants_agent(options: dict[str, Any]) -> bool:
    only = options.get("identitiesonly", "no").lower() == "yes"
    return not only and options.get("identityagent", "").lower() != "none"


def _with_includes(path: Path, base: Path, depth: int = 0) -> str:
    """The text of an ssh_config with its Include lines replaced, which paramiko itself ignores."""
    if depth > MAX_INCLUDE_DEPTH:
        raise ConfigError(f"{path} is included too deeply", hint="look for an Include that includes itself")
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    out: list[str] = []
    block = "Host *"
    for line in lines:
        keyword = re.match(r"\s*(host|match|include)(?:\s*=\s*|\s+)(.+)", line, re.IGNORECASE)
        if keyword is None or keyword[1].lower() != "include":
            block = line if keyword else block
            out.append(line)
            continue
        for pattern in shlex.split(keyword[2]):
            for included in _glob(pattern, base):
                out.append(_with_includes(included, base, depth + 1))
        # A Host line in the included file must not swallow what follows the Include.
        out.append(block)
    return "\n".join(out)


def _glob(pattern: str, base: Path) -> list[Path]:
    path = base / Path(pattern).expanduser()
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


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
        raise ConfigError(f"ssh_config gives {alias} the port {text!r}")
    return int(text)
