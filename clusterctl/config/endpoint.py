"""SSH endpoints: `user@host:port`, where user and port are optional and an IPv6 address goes in brackets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_NAME = re.compile(r"[\w.-]+")
_USER = re.compile(r"[^\s:/]+")


@dataclass(frozen=True)
class Endpoint:
    """The address of an SSH server.

    A `user` or `port` of None is left to ~/.ssh/config and SSH's defaults. `host` has no brackets.
    """

    user: str | None
    host: str
    port: int | None

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        return user + host_and_port(self.host, self.port)


def host_and_port(host: str, port: int | None) -> str:
    """Return `host`, `host:22`, `[fe80::1]` or `[fe80::1]:22`."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse the output of `str(Endpoint)`. Raises ValueError with the reason, never quoting a password."""
    if "://" in text:
        raise ValueError("write user@host:port, without ://")
    user, at, address = text.rpartition("@")
    if at:
        _check_user(user)
    if address.startswith("["):
        inside, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("write an IPv6 address as [address]:port")
        return Endpoint(user or None, _ipv6(inside), _port(rest[1:]) if rest else None)
    if address.count(":") > 1:
        raise ValueError("an IPv6 address goes in brackets, such as [fe80::1]:22")
    host, colon, port = address.partition(":")
    return Endpoint(user or None, check_hostname(host), _port(port) if colon else None)


def masked(text: str) -> str:
    """Return `text` for use in a message, with any password before the @ hidden."""
    return re.sub(r"^([^@:]*):.*@", r"\1:***@", text, flags=re.DOTALL)


def check_hostname(host: str) -> str:
    """Return `host` unchanged. Raises ValueError unless it is a host name or an IPv4 address without a port."""
    if not host:
        raise ValueError("the host name is missing")
    if not _NAME.fullmatch(host) or host.startswith(("-", ".")):
        raise ValueError(f"{host!r} is not a host name")
    if re.fullmatch(r"\d+\.\d+\.\d+\.\d+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as exc:
            raise ValueError(f"{host} is not an IPv4 address") from exc
    return host


def check_address(address: str) -> str:
    """Return a host name or IP address, without the brackets of an IPv6 address. Raises ValueError."""
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    return _ipv6(bare) if ":" in bare else check_hostname(bare)


def _check_user(user: str) -> None:
    if ":" in user:
        raise ValueError("passwords are not accepted here; use a key (IDENTITY_FILE, ssh-agent)")
    if not _USER.fullmatch(user) or not user.isprintable() or user.startswith("-"):
        raise ValueError("the user name before @ is missing or malformed")


def _ipv6(address: str) -> str:
    try:
        ipaddress.IPv6Address(address)
    except ValueError as exc:
        raise ValueError(f"{address!r} is not an IPv6 address") from exc
    return address


def _port(digits: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", digits) or not 1 <= int(digits) <= 65535:
        raise ValueError("port must be 1 to 65535")
    return int(digits)
