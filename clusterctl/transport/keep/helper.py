"""The helper: a process of the user's own that keeps SSH connections open between commands.

Its memory holds what a connection needs and nothing else; secrets that a user has typed are forgotten with the last
command that is connected.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from clusterctl.transport import paramiko_loader
from clusterctl.transport.keep import frames, place
from clusterctl.transport.keep.connections import Connections
from clusterctl.transport.keep.session import Asking, Session

TICK_S = 0.5
FIRST_USE_S = 60.0
BETWEEN_S = 1.0  # from one request of a command to the next


class _End(BaseException):
    """SIGTERM."""


class Helper:
    """Serves the clients of one socket until its connections have not been used for long enough."""

    def __init__(
        self, listener: socket.socket, directory: Path, name: str, connections: Connections, asking: Asking
    ) -> None:
        self._listener, self._directory, self._name = listener, directory, name
        self._connections, self._asking = connections, asking
        self._identity = self._inode()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sessions: set[Session] = set()
        self._needless_at = time.monotonic() + FIRST_USE_S

    def serve(self) -> None:
        self._listener.listen(frames.BACKLOG)  # again, so that clients see this process at the other end
        self._listener.settimeout(TICK_S)
        threading.Thread(target=self._tend, daemon=True, name="tend").start()
        while not self._is_over():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # too many open files
                self._stopped.wait(TICK_S)
                continue
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        session = Session(client, self._connections, self._asking, self.end)
        with self._lock:
            self._sessions.add(session)
        threading.Thread(target=self._run, args=(session,), daemon=True, name="session").start()

    def _run(self, session: Session) -> None:
        try:
            session.run()
        finally:
            with self._lock:
                self._sessions.discard(session)
                self._needless_at = time.monotonic() + BETWEEN_S
                if not self._sessions:
                    self._connections.forget_secrets()

    def _tend(self) -> None:
        """Tend the connections from a thread of its own: a beat may have to wait for a slow network."""
        while not self._stopped.wait(TICK_S):
            self._connections.tend()

    def end(self) -> None:
        """End now, whatever is in use."""
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_over(self) -> bool:
        if self._inode() != self._identity:
            return True
        if self._connections.names():
            return False
        with self._lock:
            return not self._sessions and time.monotonic() > self._needless_at

    def _inode(self) -> tuple[int, int]:
        try:
            status = os.lstat(self._directory / self._name)
        except OSError:
            return (0, 0)
        return (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Give the name of the socket free, turn away who has just come, and close all connections."""
        with contextlib.suppress(OSError), place.opened(self._directory) as fd, place.locked(fd):
            if self._inode() == self._identity != (0, 0):
                os.unlink(self._name, dir_fd=fd)
        self._listener.close()
        self._stopped.set()
        self._connections.close()


def main() -> None:
    """Run the helper: the arguments are a listening socket, its place, a time limit, and if host keys are checked."""
    number, directory, name, timeout_s, strict = sys.argv[1:]
    signal.signal(signal.SIGTERM, _on_term)
    listener = socket.socket(fileno=int(number))
    asking = Asking()
    connections = Connections(strict=strict == "1", timeout_s=float(timeout_s), ask=asking.question)
    helper = Helper(listener, Path(directory), name, connections, asking)
    threading.Thread(target=paramiko_loader.load, daemon=True).start()
    try:
        helper.serve()
    except _End:
        pass
    finally:
        helper.close()


def _on_term(number: int, stack: FrameType | None) -> Any:
    raise _End
