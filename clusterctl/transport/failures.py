"""The error for each way in which a connection can fail: its message and its hint."""

from __future__ import annotations

import errno
import shlex
import socket
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.errors import ConfigError, InterruptedRun, NodeError, RefusedError, UnreachableError
from clusterctl.transport.known_hosts import HostKey, Verdict
from clusterctl.transport.target import Destination, Target

MOST_WORDS = 300  # characters of a server's words in a message
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


@dataclass
class Attempts:
    """The login attempts on one server, for the message if all of them fail."""

    tried: list[str] = field(default_factory=list)
    encrypted: list[Path] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list, repr=False)  # passwords

    @property
    def takes_password(self) -> bool:
        return bool({"password", "keyboard-interactive"} & set(self.allowed))

    @property
    def text(self) -> str:
        parts = [f"tried {', '.join(self.tried)}" if self.tried else "found no key to try"]
        parts += ["the password was not accepted"] if self.refused else []
        parts += [f"{path} is encrypted and not in ssh-agent" for path in self.encrypted]
        return "; ".join(parts + self.unusable)


def unreachable(target: Target, exc: BaseException, timeout_s: float) -> UnreachableError:
    """Return the error for a failed connection attempt, from the exception of the socket or of paramiko."""
    address = target.address
    if isinstance(exc, socket.gaierror):
        message = f"cannot resolve the host name {target.host} ({exc.strerror})"
        hint = "correct the name in HOSTS, or use an address; try: getent hosts " + shlex.quote(target.host)
    elif isinstance(exc, TimeoutError) or getattr(exc, "errno", None) == errno.ETIMEDOUT:
        message = f"no SSH response from {address} within {timeout_s:g} s"
        hint = "check that the machine is up, the address is correct, and the firewall allows the port"
    elif isinstance(exc, ConnectionRefusedError):
        message = f"connection to {address} refused"
        hint = f"check that sshd is running on {target.host}:{target.port}"
    elif isinstance(exc, OSError) and exc.errno in _NO_ROUTE:
        message = f"no route to {address} ({exc.strerror})"
        hint = "check that the machine is up and that you are on its network (VPN)"
    elif isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        message = f"cannot connect to {address}: this machine has reached its limit of open files ({exc.strerror})"
        hint = "raise the limit in this shell and try again: ulimit -n 4096"
    elif isinstance(exc, (EOFError, ConnectionResetError, BrokenPipeError)):
        message = f"{address} hung up during the SSH handshake"
        hint = (
            "check that it is an SSH server; if it is overloaded, see MaxStartups and PerSourcePenalties in sshd_config"
        )
    elif type(exc).__name__ == "ChannelException" and target.via is not None:
        message = (
            f"{target.via.address} cannot open a connection to {address}: {str(getattr(exc, 'text', exc))[:MOST_WORDS]}"
        )
        hint = "check that the jump host can reach it and that its sshd_config allows TCP forwarding"
    else:
        message = f"cannot connect to {address}: {str(exc)[:MOST_WORDS] or type(exc).__name__}"
        hint = f"try: ssh -v -p {target.port} {shlex.quote(f'{target.user}@{target.host}')}"
    return UnreachableError(message, node=target.label, hint=hint, details=_details(target))


def not_logged_in(target: Target, attempts: Attempts) -> UnreachableError:
    """Return the error for a server that did not accept any of our keys."""
    message = f"{target.address} denied the login of {target.user}: {attempts.text}"
    if attempts.allowed and "publickey" not in attempts.allowed:
        message += f"; the server allows only {', '.join(attempts.allowed)[:MOST_WORDS]}"
    if attempts.encrypted:
        hint = f"unlock the key for this session: ssh-add {shlex.quote(str(attempts.encrypted[0]))}"
    else:
        hint = (
            "set IDENTITY_FILE to the right key, or load it with ssh-add; "
            f"the line in its .pub file must be in ~/.ssh/authorized_keys of {target.user} on {target.host}"
        )
    return UnreachableError(
        message, node=target.label, hint=hint, details={**_details(target), "reason": "authentication"}
    )


def untrusted(target: Target, key: HostKey, verdict: Verdict) -> RefusedError:
    """Return the error for a server whose key is unknown, changed or revoked."""
    details = {**_details(target), "reason": f"host_key_{verdict.state}", "fingerprint": key.fingerprint}
    offered = f"{key.type} {key.fingerprint}"
    if verdict.state == "unknown":
        return RefusedError(
            f"the host key of {key.name} is not known: {offered}",
            node=target.label,
            hint="compare the fingerprint with the one on the machine, then record it: clusterctl trust",
            details=details,
        )
    entries = "; ".join(f"{known.type} {known.fingerprint} at {known.where}" for known in verdict.against)
    if verdict.state == "revoked":
        return RefusedError(
            f"the host key of {key.name} is revoked: {entries}",
            node=target.label,
            hint="do not connect",
            details=details,
        )
    file = shlex.quote(str(verdict.against[0].file))
    return RefusedError(
        f"the host key of {key.name} has CHANGED: it is now {offered}, but the recorded key is {entries}. "
        "Either the machine was reinstalled, or someone is intercepting the connection",
        node=target.label,
        hint=f"only if you know why it changed: ssh-keygen -R {shlex.quote(key.name)} -f {file}, then clusterctl trust",
        details={**details, "recorded": [known.fingerprint for known in verdict.against]},
    )


def lost(label: str, where: str, what: str) -> UnreachableError:
    """Return the error for a connection that broke while in use."""
    return UnreachableError(
        f"lost the connection to {where} during: {what}",
        node=label,
        hint="check that the machine is up; the command may still be running there",
        details={"reason": "lost"},
    )


def no_channel(label: str, where: str, reason: str) -> NodeError:
    """Return the error for a reachable server that does not start another command."""
    return NodeError(
        f"{where} did not start the command: {reason}",
        node=label,
        hint="see MaxSessions and ForceCommand in its sshd_config, and the user's process limit",
        details={"reason": "no_channel"},
    )


def overdue(label: str, where: str, what: str, deadline_s: float) -> NodeError:
    """Return the error for a command that exceeded its deadline."""
    return NodeError(
        f"timed out after {deadline_s:g} s on {where}: {what}",
        node=label,
        hint="the machine may be overloaded, or its disk may hang; the command may still be running there",
        details={"reason": "deadline"},
    )


def no_login_shell(label: str, where: str, said: str) -> NodeError:
    """Return the error for an account whose login shell does not run the command that it is given, but `said` this."""
    return NodeError(
        f"the login shell on {where} did not run the command that it was given" + (f": {said}" if said else ""),
        node=label,
        hint="see its start-up files (~/.bashrc, ~/.profile, ~/.zshenv): let `exec zsh`, `exit` and the like run only "
        "on a terminal, such as: [ -t 1 ] && exec zsh; see also ForceCommand in sshd_config",
        details={"reason": "login_shell"},
    )


def input_closed(label: str, where: str, what: str) -> NodeError:
    """Return the error for a command that exited before it read all its input."""
    return NodeError(
        f"the command on {where} exited before it read all of its input: {what}",
        node=label,
        details={"reason": "input_closed"},
    )


def not_by_ssh(node: Destination) -> ConfigError:
    """Return the error for a node without an SSH server of ours to connect to."""
    return ConfigError(
        f"this needs SSH, but VIA reaches {node.ssh_host} by {node.carrier}",
        node=node.label,
        hint='choose other nodes with --only, or set VIA = "ssh"',
    )


def interrupted(label: str) -> InterruptedRun:
    """Return the error for work that was interrupted."""
    return InterruptedRun("interrupted", node=label)


def _details(target: Target) -> dict[str, object]:
    return {"host": target.host, "port": target.port, "user": target.user}
