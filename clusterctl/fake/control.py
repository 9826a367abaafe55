"""The control socket of the embedded server: one JSON line per request, one per answer.

The path of a unix socket is limited to about 100 bytes, and a directory's path may be longer. So both sides go through
a descriptor of the directory.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from clusterctl.fake.layout import FakePaths

ANSWER_S = 30.0


def listen(layout: FakePaths) -> socket.socket:
    """Return the server's end. Only this account may enter the directory."""
    sock = socket.socket(socket.AF_UNIX)
    with _short_name(layout) as name:
        sock.bind(name)
    sock.listen()
    return sock


@contextlib.contextmanager
def connect(layout: FakePaths) -> Iterator[socket.socket]:
    """Yield the client's end. Raises OSError if no server listens or it does not answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        with _short_name(layout) as name:
            sock.connect(name)
        yield sock


@contextlib.contextmanager
def _short_name(layout: FakePaths) -> Iterator[str]:
    fd = os.open(layout.control.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{layout.control.name}"
    finally:
        os.close(fd)
