"""End the helpers of this user: `clusterctl disconnect`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import NamedTuple

from clusterctl.common.safe_json import parse
from clusterctl.transport.keep import frames, place
from clusterctl.transport.keep.frames import Frames

ANSWER_S = 20.0  # only one that is stuck takes so long
END_S = 10.0


class Ended(NamedTuple):
    """A helper that was ended: its process, and the servers to which it had connections; None if it did not say."""

    pid: int
    closed: tuple[str, ...] | None


def end_helpers(directory: Path) -> list[Ended]:
    """End every helper with a socket in a directory, also those of other versions. Returns once they have ended."""
    ended = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), place.opened(directory) as fd:
        for name in sorted(path.name for path in directory.iterdir()):
            if name.endswith(place.SUFFIX):
                helper = _end(place.address(directory, fd, name), name)
                ended += [helper] if helper is not None else []
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)
    return ended


def _end(address: str, name: str) -> Ended | None:
    """End a helper: by asking it, or by a signal if it does not answer. Returns None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(address)
        except OSError:
            return None
        pid = place.check_peer(sock)
        try:
            received = Frames(sock)
            received.next()
            sock.sendall(frames.frame(frames.END))
            answer = parse(received.next()[1])
            sock.settimeout(END_S)
            with contextlib.suppress(OSError):
                sock.recv(1)  # until it has closed all connections, and with them this one
            return Ended(answer["pid"], tuple(answer["closed"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            if not _is_helper(pid, name):
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return Ended(pid, None)


def _is_helper(pid: int, name: str) -> bool:
    """Return True if a process is the helper of a socket: until it has started, the other end is who started it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return name.encode() in words
