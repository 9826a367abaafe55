"""Authentication: keys from files and from ssh-agent in the order used by `ssh`, then passwords."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH, get_agent_connection
from paramiko.ssh_exception import BadAuthenticationType, SSHException

from clusterctl.transport.connection import Connection
from clusterctl.transport.failures import Attempts
from clusterctl.transport.secrets import Credentials
from clusterctl.transport.target import Target

AGENT_S = 10.0
_OPENSSH_MAGIC = b"openssh-key-v1\0"


def authenticate(connection: Connection, target: Target, attempts: Attempts, secrets: Credentials) -> bool:
    """Log in with the first key that the server accepts, else with a password. Records each try in `attempts`.

    Returns False if the server accepted nothing, or hung up after it rejected some. Raises EOFError if it hung up
    at the first key, and TimeoutError if it did not respond.
    """
    return _by_key(connection, target, attempts, secrets) or _by_password(connection, target, attempts, secrets)


def _by_key(connection: Connection, target: Target, attempts: Attempts, secrets: Credentials) -> bool:
    with _agent_keys(target) as agent_keys:
        for name, key in _candidates(target, agent_keys, attempts, secrets):
            attempts.tried.append(name)
            try:
                if not connection.auth_publickey(target.user, key):
                    return True
                attempts.unusable.append(f"{target.host} accepted the key but requires a second factor")
            except BadAuthenticationType as exc:
                attempts.allowed = list(exc.allowed_types)
                return False
            except SSHException as exc:
                if "timeout" in str(exc).lower():
                    raise TimeoutError from exc
                if not connection.is_active():
                    return _hung_up(attempts)
    return False


def _by_password(connection: Connection, target: Target, attempts: Attempts, secrets: Credentials) -> bool:
    """Try the passwords entered for this user, if the server accepts any. Never prompts: the clock is running."""
    try:
        if not attempts.allowed and connection.is_active():
            connection.auth_none(target.user)
            return True
    except BadAuthenticationType as exc:
        attempts.allowed = list(exc.allowed_types)
    except SSHException:
        return False
    for password in secrets.passwords(target.user) if attempts.takes_password else ():
        if password in attempts.refused:  # the server may lock the account after a few failures
            continue
        try:
            if not connection.is_active():
                return False
            if not connection.auth_password(target.user, password):
                secrets.was_right(target.user, password)
                return True
            attempts.unusable.append(f"{target.host} accepted the password but requires a second factor")
        except SSHException as exc:
            if "timeout" in str(exc).lower():
                raise TimeoutError from exc
        attempts.refused.append(password)
    return False


def _hung_up(attempts: Attempts) -> bool:
    if len(attempts.tried) == 1:
        raise EOFError("the server hung up at the first key")
    attempts.unusable.append("then the server hung up (MaxAuthTries)")
    return False


def _candidates(
    target: Target, agent_keys: tuple[paramiko.AgentKey, ...], attempts: Attempts, secrets: Credentials
) -> Iterator[tuple[str, paramiko.PKey]]:
    by_blob = {key.asbytes(): key for key in agent_keys}
    for path in target.identities:
        yield from _of_file(path, target.explicit, by_blob, attempts, secrets)
    for key in by_blob.values():
        yield f"ssh-agent key {key.comment or key.get_name()}", key


def _of_file(
    path: Path, explicit: bool, by_blob: dict[bytes, paramiko.AgentKey], attempts: Attempts, secrets: Credentials
) -> Iterator[tuple[str, paramiko.PKey]]:
    try:
        data = path.read_bytes()
    except OSError as exc:
        held = by_blob.pop(_public_blob(path), None)
        if held is not None:  # only the agent may have the private key
            yield f"ssh-agent key {path}", held
        elif explicit:
            attempts.unusable.append(f"cannot read {path}: {exc.strerror}")
        return
    held = by_blob.pop(_public_blob(path, data), None)
    if held is not None:
        yield f"ssh-agent key {path}", held
    elif _is_encrypted(data):
        unlocked = secrets.key(path)
        if unlocked is not None:
            yield str(path), unlocked
        else:
            attempts.encrypted.append(path)
    else:
        try:
            yield str(path), secrets.key(path, lambda: paramiko.PKey.from_path(path))
        except (SSHException, ValueError, TypeError, paramiko.pkey.UnknownKeyType) as exc:
            attempts.unusable.append(f"{path} is not a usable private key ({exc})")


@contextlib.contextmanager
def _agent_keys(target: Target) -> Iterator[tuple[paramiko.AgentKey, ...]]:
    if not target.use_agent:
        yield ()
        return
    agent = AgentSSH()
    try:
        try:
            _connect_agent(agent)
        except (SSHException, OSError):  # a stale SSH_AUTH_SOCK, or an agent that hangs, counts as no agent
            yield ()
            return
        yield tuple(agent.get_keys())
    finally:
        agent._close()


def _connect_agent(agent: AgentSSH) -> None:
    """Connect as `paramiko.Agent` does, but with a timeout: paramiko would wait forever for the agent."""
    connection = get_agent_connection()
    if connection is not None:
        connection.settimeout(AGENT_S)
        agent._connect(connection)


def _is_encrypted(data: bytes) -> bool:
    opened = _open_openssh(data)
    return opened[0] != b"none" if opened else b"ENCRYPTED" in data


def _public_blob(path: Path, data: bytes = b"") -> bytes:
    """Return the public key of a private key file, without its passphrase; empty if it is unknown."""
    opened = _open_openssh(data)
    if opened:
        return opened[1]
    try:
        fields = Path(f"{path}.pub").read_text(encoding="utf-8", errors="replace").split()
        return base64.b64decode(fields[1])
    except (OSError, IndexError, binascii.Error, ValueError):
        return b""


def _open_openssh(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the cipher name and public blob of a key in OpenSSH's own format (PROTOCOL.key), else None."""
    body = b"".join(line for line in data.splitlines() if not line.startswith(b"-----"))
    try:
        packed = base64.b64decode(body)
    except (binascii.Error, ValueError):
        return None
    if not packed.startswith(_OPENSSH_MAGIC):
        return None
    message = paramiko.Message(packed[len(_OPENSSH_MAGIC) :])
    cipher, _kdf, _options, _count, public = (
        message.get_string(), message.get_string(), message.get_string(), message.get_int(), message.get_string()
    )  # fmt: skip
    return cipher, public
