"""What each way of not getting through means to the user: the message, and what to do about it."""

from __future__ import annotations

import errno
import shlex
import socket
from typing import TYPE_CHECKING

from clusterctl.errors import InterruptedRun, NodeError, RefusedError, UnreachableError
from clusterctl.transport.known_hosts import HostKey, Verdict
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.transport.login import Attempts

_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


def unreachable(target: Target, exc: BaseException, timeout_s: float) -> UnreachableError:
    """The error for a connection that could not be made, from what the socket or paramiko raised."""
    address = target.address
    if isinstance(exc, socket.gaierror):
        message = f"cannot resolve the host name {target.host} ({exc.strerror})"
        hint = "correct the name in HOSTS, or give an address; try: getent hosts " + shlex.quote(target.host)
    elif isinstance(exc, TimeoutError) or getattr(exc, "errno", None) == errno.ETIMEDOUT:
        message = f"no SSH answer from {address} within {timeout_s:g} s"
        hint = "is the machine up, the address right, and the port open in the firewall?"
    elif isinstance(exc, ConnectionRefusedError):
        message = f"connection to {address} refused"
        hint = f"is sshd running on {target.host}:{target.port}?"
    elif isinstance(exc, OSError) and exc.errno in _NO_ROUTE:
        message = f"no route to {address} ({exc.strerror})"
        hint = "is the machine up, and are you on its network (VPN)?"
    elif isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        message = f"cannot connect to {address}: this machine allows no more open files ({exc.strerror})"
        hint = "allow more in this shell, and try again: ulimit -n 4096"
    elif isinstance(exc, (EOFError, ConnectionResetError, BrokenPipeError)):
        message = f"{address} hung up during the SSH handshake"
        hint = "is it an SSH server? if so, it may be overloaded: see MaxStartups and PerSourcePenalties in sshd_config"
    elif type(exc).__name__ == "ChannelException" and target.via is not None:
        message = f"{target.via.address} cannot open a connection to {address}: {getattr(exc, 'text', exc)}"
        hint = "can the jump host reach it, and does its sshd_config allow TCP forwarding?"
    else:
        message = f"cannot connect to {address}: {exc or type(exc).__name__}"
        hint = f"try: ssh -v -p {target.port} {shlex.quote(f'{target.user}@{target.host}')}"
    return UnreachableError(message, node=target.label, hint=hint, details=_details(target))


def not_logged_in(target: Target, attempts: Attempts) -> UnreachableError:
    """The error for a server that took none of our keys."""
    message = f"{target.address} did not let {target.user} in: {attempts.text}"
    if attempts.allowed and "publickey" not in attempts.allowed:
        message += f"; the server only allows {', '.join(attempts.allowed)}"
    if attempts.encrypted:
        hint = f"unlock the key for this session: ssh-add {shlex.quote(str(attempts.encrypted[0]))}"
    else:
        hint = (
            "set IDENTITY_FILE to the right key, or load it with ssh-add; "
            f"its .pub line must stand in ~/.ssh/authorized_keys of {target.user} on {target.host}"
        )
    return UnreachableError(
        message, node=target.label, hint=hint, details={**_details(target), "reason": "authentication"}
    )


def untrusted(target: Target, key: HostKey, verdict: Verdict) -> RefusedError:
    """The refusal of a server whose key is unknown, changed or revoked."""
    details = {**_details(target), "reason": f"host_key_{verdict.state}", "fingerprint": key.fingerprint}
    offered = f"{key.type} {key.fingerprint}"
    if verdict.state == "unknown":
        return RefusedError(
            f"the host key of {key.name} is not known: {offered}",
            node=target.label,
            hint="compare the fingerprint with the machine's own, then record it: clusterctl trust",
            details=details,
        )
    places = "; ".join(f"{known.type} {known.fingerprint} at {known.where}" for known in verdict.against)
    if verdict.state == "revoked":
        return RefusedError(
            f"the host key of {key.name} is revoked: {places}",
            node=target.label,
            hint="do not connect",
            details=details,
        )
    file = shlex.quote(str(verdict.against[0].file))
    return RefusedError(
        f"the host key of {key.name} has CHANGED: it now shows {offered}, but recorded is {places}. "
        "Either the machine was reinstalled, or someone is in between",
        node=target.label,
        hint=f"only if you know why: ssh-keygen -R {shlex.quote(key.name)} -f {file}, then clusterctl trust",
        details={**details, "recorded": [known.fingerprint for known in verdict.against]},
    )


def lost(label: str, where: str, what: str) -> UnreachableError:
    """The error for a connection that broke while something was going on."""
    return UnreachableError(
        f"lost the connection to {where} during: {what}",
        node=label,
        hint="is the machine still up? what it was doing may have gone on without us",
        details={"reason": "lost"},
    )


def no_channel(label: str, where: str, reason: str) -> NodeError:
    """The error for a server that is there but starts no more commands."""
    return NodeError(
        f"{where} does not start a command: {reason}",
        node=label,
        hint="see MaxSessions and ForceCommand in its sshd_config, and the process limits of the user",
        details={"reason": "no_channel"},
    )


def overdue(label: str, where: str, what: str, deadline_s: float) -> NodeError:
    """The error for a command that did not end in its time."""
    return NodeError(
        f"no end within {deadline_s:g} s on {where} of: {what}",
        node=label,
        hint="the machine may be overloaded or its disk hang; the command may still be running there",
        details={"reason": "deadline"},
    )


def input_closed(label: str, where: str, what: str) -> NodeError:
    """The error for input that a command can no longer take."""
    return NodeError(
        f"it ended before it had read all its input on {where}: {what}",
        node=label,
        details={"reason": "input_closed"},
    )


def interrupted(label: str) -> InterruptedRun:
    """The error for work that was told to end."""
    return InterruptedRun("interrupted", node=label)


def _details(target: Target) -> dict[str, object]:
    return {"host": target.host, "port": target.port, "user": target.user}
