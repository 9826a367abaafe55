"""Where the sockets of helpers are, whose they are, and which helper serves which command."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterctl import __version__

FOLDER = "connections"
SUFFIX = ".socket"
MOST_PATH_BYTES = 100  # an address of a unix socket has room for 108 on Linux, 104 on macOS
SOURCES = Path(__file__).parents[1]
#: What else decides who a server takes us for, and how a ProxyCommand runs.
VARIABLES = ("HOME", "PATH", "SSH_AUTH_SOCK", "USER", "LOGNAME")


def directory_of(cache: Path) -> Path:
    return cache / FOLDER


def name_of(environ: Mapping[str, str], *, strict: bool) -> str:
    """Return the name of the socket whose helper may serve this command: of the same code, settings and environment."""
    code = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(SOURCES.rglob("*.py"))]
    parts = [__version__, sys.executable, code, socket.gethostname(), _boot(), strict]
    parts += [environ.get(name) for name in VARIABLES]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24] + SUFFIX


def _boot() -> str:
    """Return what a restart of this machine changes; the sockets of before are files that nobody serves."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return ""


@contextlib.contextmanager
def opened(directory: Path, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory, made with mode 0700 if it is missing.

    Raises OSError if it is not this user's own alone, or missing.
    """
    if make:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{directory} must be this user's own, with mode 0700")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(fd: int) -> Iterator[None]:
    """Let one process at a time make or remove sockets in a directory."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def address(directory: Path, fd: int, name: str) -> str:
    """Return an address of the socket that is short enough. Raises OSError if there is none."""
    plain = str(directory / name)
    if len(os.fsencode(plain)) <= MOST_PATH_BYTES:
        return plain
    if Path("/proc/self/fd").is_dir():
        return f"/proc/self/fd/{fd}/{name}"
    raise OSError(f"{plain} is too long for a socket")


def check_peer(sock: socket.socket) -> int:
    """Return the process that made or serves the other end, 0 if unknown. Raises PermissionError for another user's."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    elif sys.platform == "darwin":
        pid, uid = 0, _uid_on_macos(sock)
    else:
        raise PermissionError("this system does not tell whose the other end of a socket is")
    if uid != os.getuid():
        raise PermissionError(f"the other end of the socket belongs to uid {uid}")
    return int(pid)


def _uid_on_macos(sock: socket.socket) -> int:
    """Return `cr_uid` of `struct xucred`, the LOCAL_PEERCRED of a socket (SOL_LOCAL is 0)."""
    version, uid = struct.unpack_from("=II", sock.getsockopt(0, 1, 76))
    if version != 0:
        raise PermissionError("the credentials of the other end of a socket have an unknown form")
    return int(uid)
