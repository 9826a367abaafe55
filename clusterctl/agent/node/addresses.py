"""The address at which the other nodes reach this one."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from clusterctl.common.errors import AgentError

SIOCGIFCONF = 0x8912
IFREQ_BYTES = 40  # on a 64-bit kernel: the name, then a sockaddr with the address at byte 20
MOST_ADDRESSES = 512
IF_INET6 = Path("/proc/net/if_inet6")
LINK_LOCAL = "20"


class LocalAddress(NamedTuple):
    """An address of this machine, and the interface that has it."""

    interface: str
    address: str


def local_addresses() -> list[LocalAddress]:
    """Return all IPv4 addresses, then all IPv6 addresses except link-local ones."""
    return _ipv4() + _ipv6()


def _ipv4() -> list[LocalAddress]:
    buffer = array.array("B", bytes(IFREQ_BYTES * MOST_ADDRESSES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(sock.fileno(), SIOCGIFCONF, request))[0]
    data = buffer.tobytes()[:used]
    entries = (data[start : start + IFREQ_BYTES] for start in range(0, used, IFREQ_BYTES))
    return [LocalAddress(_name(entry), socket.inet_ntoa(entry[20:24])) for entry in entries]


def _name(entry: bytes) -> str:
    return entry[:16].split(b"\0")[0].decode(errors="replace").partition(":")[0]


def _ipv6() -> list[LocalAddress]:
    addresses = []
    with contextlib.suppress(OSError):
        for line in IF_INET6.read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope != LINK_LOCAL:
                addresses.append(LocalAddress(name, str(ipaddress.IPv6Address(int(digits, 16)))))
    return addresses


def find_address(address: str | None, nic: str | None) -> str:
    """Return `address` as an IP address, else that of `nic` (interface, subnet or address), else that of SSH.

    Over another carrier it is that of the default route.
    """
    if address:
        return _resolve(address)
    if nic:
        return _of_nic(nic)
    if "SSH_CONNECTION" not in os.environ:
        return _of_default_route()
    connection = os.environ["SSH_CONNECTION"].split()
    if len(connection) != 4 or "%" in connection[2]:
        raise AgentError("the address of this node is not known", hint="set Host(address=...) or NIC in conf.py")
    return connection[2]


def _of_default_route() -> str:
    """Return the address with which this node would reach strangers; without a route any that others may reach."""
    for family, stranger in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((stranger, 9))  # sends nothing
            return str(sock.getsockname()[0])
    found = [local.address for local in local_addresses()]
    return next((one for one in found if not ipaddress.ip_address(one).is_loopback), "127.0.0.1")


def _resolve(name: str) -> str:
    try:
        resolved = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        hint = "set Host(address=...) in conf.py to an IP address, or to a name that this node can resolve"
        raise AgentError(f"cannot resolve its own address {name!r}: {exc.strerror}", hint=hint) from exc
    return str(resolved[0][4][0])


def _of_nic(nic: str) -> str:
    here = local_addresses()
    network = _network(nic)
    if network is None:
        matches = [local.address for local in here if local.interface == nic]
        problem = f"there is no interface {nic!r} with an IP address"
    else:
        matches = [local.address for local in here if ipaddress.ip_address(local.address) in network]
        problem = f"there is no address in {nic}" if "/" in nic else f"there is no address {nic}"
    if not matches:
        raise AgentError(problem, hint="NIC: " + ", ".join(f"{name} ({address})" for name, address in here))
    return matches[0]


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network or single address in `text`; None if it is the name of an interface."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def interface_of(address: str) -> str | None:
    """Return the interface that has this address."""
    return next((local.interface for local in local_addresses() if local.address == address), None)
