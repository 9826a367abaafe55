"""fabric's Connection over the pooled connection to a node."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from typing import Any

import fabric
import invoke
from paramiko.config import SSHConfig

from clusterctl.errors import ConfigError, NodeError
from clusterctl.fabric.runner import Local, Remote, titled
from clusterctl.inventory import Node
from clusterctl.transport import Transport, paramiko_loader
from clusterctl.transport.link import ConnectionLease


def make_config(collection: Mapping[str, Any] | None = None) -> Any:
    """Return fabric's configuration, from its files, its variables, and the settings of a `collection` of tasks.

    Only conf.py and `~/.ssh/config` say how to connect. Standard input is not forwarded to the nodes, and text is
    UTF-8. Raises ConfigError for a mistake in a file or a variable.
    """
    overrides = {
        "run": {"in_stream": False, "encoding": "utf-8"},
        "runners": {"remote": Remote, "local": Local},
        "load_ssh_configs": False,
        "ssh_config_path": None,
    }
    try:
        config = fabric.Config(overrides=overrides, ssh_config=SSHConfig())
        config.load_collection(dict(collection or {}))
        config.load_shell_env()
    except Exception as exc:  # the parsers of its files raise errors of their own
        text = " ".join(str(exc).split())
        hint = "see ~/.fabric.yaml, /etc/fabric.yaml, variables FABRIC_... and configure() in the file of tasks"
        raise ConfigError(f"the configuration of fabric is wrong: {type(exc).__name__}: {text}", hint=hint) from exc
    return config


class Connection(fabric.Connection):  # type: ignore[misc]
    """A `fabric.Connection` to a node of conf.py, for one thread at a time.

    It borrows the connection that all of clusterctl uses: with its host key check, jump hosts, time limits and keys.
    `close` gives it back. Two connections are equal if they are to the same node, even on one machine. `node` is the
    node: its `id`, `label`, `where`, `root_dir`, `tags` and `env`. Agents are not forwarded, and `connect_kwargs` and
    gateways come from `~/.ssh/config` alone.

    Its methods raise as those of fabric do, and ClusterctlError where the node cannot be reached.
    """

    node: Node
    _sftp: Any = None
    link: ConnectionLease | None = None  # declared, since invoke takes a new attribute for a setting

    def __init__(self, node: Node, transport: Transport, config: Any = None) -> None:
        """Make a connection that `open`, or the first command, opens. `config` is one of `make_config`."""
        target = transport.target(node)
        super().__init__(
            target.host,
            user=target.user,
            port=target.port,
            config=make_config() if config is None else config,
            gateway=False,
            forward_agent=False,
        )
        self.original_host = node.ssh_host
        self._set(node=node, _transport=transport, link=None)

    def _identity(self) -> tuple[object, ...]:
        return (self.node.id, self.host, self.user, self.port)

    def __repr__(self) -> str:
        return f"<Connection {self.node.label} {self.node.where}>"

    def open(self) -> None:
        """Borrow the connection to the node. Raises UnreachableError, or RefusedError for an untrusted host key."""
        if self.is_connected:
            return
        self.close()  # one that broke
        link = self._transport.link(self.node)
        self._set(link=link)
        self.client._transport = self.transport = link.connection

    def close(self) -> None:
        """Give the connection back; others may be using it."""
        if self._sftp is not None:
            with contextlib.suppress(*paramiko_loader.errors()):  # the connection may have ended
                self._sftp.close()
            self._sftp = None
        self.client._transport = self.transport = None
        if self.link is not None:
            self.link.close()
            self._set(link=None)

    def create_session(self) -> Any:
        """Return a channel for a command, within 15 s. Raises NodeError if the node's login shell runs none."""
        self.open()
        self._transport.need_login_shell(self.node)
        assert self.link is not None
        return self.link.session()

    def sftp(self) -> Any:
        """Return the SFTP client of this connection. A call of it that makes no progress for 60 s fails."""
        if self._sftp is None:
            self.open()
            assert self.link is not None
            self._sftp = self.link.sftp()
        return self._sftp

    def get(self, remote: str, local: Any = None, preserve_mode: bool = True) -> Any:
        """Download a file, as fabric does. `{node}` in `local` stands for the label of the node."""
        if isinstance(local, str):
            local = local.replace("{node}", self.node.label)
        return super().get(remote, local, preserve_mode)

    def sudo(self, command: str, **kwargs: Any) -> Any:
        """Run a command with sudo. Without a password in the call or in the configuration sudo may not ask for one.

        Raises NodeError if sudo itself refuses.
        """
        if kwargs.get("password") or self.config.sudo.password:
            return super().sudo(command, **kwargs)
        kwargs.pop("password", None)
        user = kwargs.pop("user", None) or self.config.sudo.user
        words = ["sudo", "-n"]
        if kwargs.get("env"):
            words.append(f"--preserve-env={','.join(kwargs['env'])}")
        if user is not None:
            words += ["-H", "-u", user]
        try:
            return super().run(f"{shlex.join(words)} {command}", **kwargs)
        except invoke.UnexpectedExit as exc:
            said = exc.result.stderr.strip()
            if exc.result.exited == 1 and said.startswith("sudo:"):
                raise NodeError(
                    f"{titled(said.splitlines()[0])}: {titled(command)}",
                    node=self.node.label,
                    hint="let this user run it without a password (NOPASSWD in sudoers), or pass password= to sudo()",
                ) from exc
            raise
