"""File transfer on a fake node: confined to the node's home, symbolic links included."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.stream import SSHServerStreamSession

SFTP_VERSION = 3


class HomeSftp(asyncssh.SFTPServer):
    """An SFTP server for paths of this machine. Relative paths start in the node's home, and no path leads outside it.

    asyncssh's own chroot follows symbolic links to the outside, so each path is resolved before use. Therefore a link
    that points outside cannot be removed over SFTP, only by a command.
    """

    def __init__(self, chan: Any, home: Path) -> None:
        super().__init__(chan)
        self._home = home.resolve()

    def map_path(self, path: bytes) -> bytes:
        full = Path(os.path.normpath(self._home / os.fsdecode(path)))
        if not full.resolve().is_relative_to(self._home):
            raise asyncssh.SFTPPermissionDenied("outside the node's home")
        return os.fsencode(full)


class ExecOrSftp(asyncssh.SSHServerSession[bytes]):
    """A session that becomes a command or a file transfer, as the client requests. Never a shell.

    asyncssh chooses between its own sessions and a custom one before it knows the request.
    """

    def __init__(self, command: asyncssh.SSHServerSession[bytes], sftp_factory: Callable[[Any], HomeSftp]) -> None:
        self._inner = command
        self._sftp_factory = sftp_factory
        self._chan: Any = None

    def connection_made(self, chan: Any) -> None:
        self._chan = chan

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        return False

    def shell_requested(self) -> bool:
        return False

    def exec_requested(self, command: str) -> bool:
        return self._inner.exec_requested(command)

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem != "sftp":
            return False
        self._inner = SSHServerStreamSession(None, self._sftp_factory, SFTP_VERSION)
        return True

    def session_started(self) -> None:
        self._inner.connection_made(self._chan)
        self._inner.session_started()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._inner.data_received(data, datatype)

    def eof_received(self) -> bool:
        return bool(self._inner.eof_received())

    def signal_received(self, signal: str) -> None:
        self._inner.signal_received(signal)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
