"""What this machine has once: its IPv6 loopback address, if any, and names that other runs of tests wait for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from support.processes import wait_until


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold a name that exists once on this machine: tests of a certain port run one after the other, in any process."""
    with socket.socket(socket.AF_UNIX) as sock:

        def is_ours() -> bool:
            with contextlib.suppress(OSError):
                sock.bind(f"\0clusterctl-tests-{name}")
                return True
            return False

        assert wait_until(is_ours), f"another process holds {name}"
        yield


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
IPV6 = pytest.param("::1", marks=needs_ipv6)
