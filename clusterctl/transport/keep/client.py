"""The command's side: find the helper, or start it, and let it open connections."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.common.safe_json import parse
from clusterctl.transport import failures
from clusterctl.transport.keep import frames, place
from clusterctl.transport.keep.frames import Frames
from clusterctl.transport.keep.process import KeptProcess
from clusterctl.transport.keep.values import error_from_json, target_to_json
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.transport.secrets import Ask

HELLO_S = 10.0  # a helper that runs greets at once, whatever it is doing
START_S = 30.0  # one that has just been started has to load Python first
ATTEMPTS = 2  # a helper may end just when it is found
PACKAGE_ROOT = str(Path(__file__).parents[3])


class _Link(NamedTuple):
    """A connection to the helper, until it is that of a command."""

    sock: socket.socket
    received: Frames

    def taken(self) -> socket.socket:
        """Return the socket under another owner."""
        self.received.sock = socket.socket(fileno=self.sock.detach())
        return self.received.sock


class NoHelperError(Exception):
    """There is no helper to use, and nothing was asked of one."""


class Keeper:
    """The connections of one transport to its helper. Thread-safe.

    Nothing is begun on a node before the helper has answered, so that a command that gives up on it can safely connect
    by itself.
    """

    def __init__(
        self, directory: Path, keep_s: float, *, strict: bool, timeout_s: float, ask: Ask | None = None
    ) -> None:
        self._directory, self._keep_s, self._environ = directory, keep_s, dict(os.environ)
        self._strict, self._timeout_s, self._ask = strict, timeout_s, ask
        self._lock = threading.Lock()
        self._name: str | None = None
        self._unusable = False
        self._live: set[KeptProcess | socket.socket] = set()
        self._stop = threading.Event()

    def start(
        self, target: Target, command: bytes, *, agent: str | None, label: str, what: str, stderr_limit: int
    ) -> KeptProcess | None:
        """Run a quoted command on a server, or take the agent that a command before this one has left there.

        `agent` says which one that may be. Returns None if the caller has to connect itself.
        """
        request = {"command": command.decode("utf-8", "surrogateescape"), "agent": agent, "what": what}
        with self._link() as link:
            answer = self._ask_helper(link, frames.OPEN, request, target, label) if link else None
            if link is None or answer is None:
                return None
            process = KeptProcess(
                link.taken(),
                link.received,
                resumed=answer["resumed"],
                label=label,
                where=target.where,
                what=what,
                stderr_limit=stderr_limit,
            )
            process.on_close = lambda: self._forget(process)
            with self._lock:
                self._live.add(process)
        return process

    def dial(self, target: Target, label: str) -> bool:
        """Make the helper connect to a server. Returns False if the caller has to. Raises as `Pool.connection` does."""
        with self._link() as link:
            return bool(link and self._ask_helper(link, frames.DIAL, {"what": "connecting"}, target, label))

    def unconnected(self, targets: Sequence[Target]) -> list[bool]:
        """Return for each server whether the helper has no connection to it. Raises OSError, EOFError, ValueError."""
        with self._link() as link:
            if link is None:
                return [True] * len(targets)
            link.sock.settimeout(HELLO_S)
            request = {"targets": [target_to_json(target) for target in targets]}
            link.sock.sendall(frames.json_frame(frames.LIST, request))
            return list(parse(link.received.next()[1])["unconnected"])

    def abort(self) -> None:
        """Close everything that is in use."""
        with self._lock:
            live, self._live = self._live, set()
            self._stop.set()
            self._stop = threading.Event()
        for one in live:
            if isinstance(one, KeptProcess):
                one.abort()
            else:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _forget(self, one: KeptProcess | socket.socket) -> None:
        with self._lock:
            self._live.discard(one)

    @contextlib.contextmanager
    def _link(self) -> Iterator[_Link | None]:
        """Yield a connection to the helper, None if there is no helper."""
        try:
            link = self._connected()
        except NoHelperError:
            yield None
            return
        with link.sock:
            with self._lock:
                self._live.add(link.sock)
            try:
                yield link
            finally:
                self._forget(link.sock)

    def _ask_helper(
        self, link: _Link, kind: bytes, request: dict[str, Any], target: Target, label: str
    ) -> dict[str, Any] | None:
        """Return the helper's answer, None if it declines. Answer its questions. Raises the error that it reports."""
        about = {"target": target_to_json(target), "label": label, "keep_s": self._keep_s}
        stop = self._stop
        try:
            link.sock.settimeout(None)
            link.sock.sendall(frames.json_frame(kind, {**request, **about}))
            while True:
                kind, data = link.received.next()
                if kind == frames.QUESTION:
                    link.sock.sendall(frames.json_frame(frames.SECRET, {"secret": self._secret(data.decode(), stop)}))
                elif kind == frames.BEGUN:
                    return {"resumed": False, **parse(data)}
                elif kind == frames.DECLINED:
                    return None
                elif kind == frames.FAILURE:
                    raise error_from_json(parse(data), label)
        except (OSError, EOFError) as exc:
            if stop.is_set():
                raise failures.interrupted(label) from exc
            raise failures.lost(label, target.where, request["what"]) from exc

    def _secret(self, prompt: str, stop: threading.Event) -> str | None:
        from clusterctl.transport.secrets import ask_terminal

        return (self._ask or ask_terminal)(prompt, stop)

    def _connected(self) -> _Link:
        """Return a socket to a helper that has greeted. Raises NoHelperError."""
        if self._unusable:
            raise NoHelperError("there was none before")
        try:
            for _ in range(ATTEMPTS):
                sock, limit_s = self._socket()
                received = Frames(sock)
                try:
                    place.check_peer(sock)
                    sock.settimeout(limit_s)
                    if received.next()[0] == frames.HELLO:
                        return _Link(sock, received)
                except EOFError:
                    pass  # it was just ending, or could not start
                except BaseException:
                    sock.close()
                    raise
                sock.close()
        except OSError as exc:
            self._unusable = True
            raise NoHelperError(str(exc)) from exc
        self._unusable = True
        raise NoHelperError("the helper ended")

    def _socket(self) -> tuple[socket.socket, float]:
        """Return a socket that is connected to a helper, started if there is none, and how long that may take."""
        if self._name is None:
            self._name = place.name_of(self._environ, strict=self._strict)
        with place.opened(self._directory, make=True) as fd:
            where = place.address(self._directory, fd, self._name)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return _connect(where), self._patience_s(fd)
            with place.locked(fd):
                try:
                    return _connect(where), START_S
                except (FileNotFoundError, ConnectionRefusedError):
                    self._start_helper(where, fd)
                    return _connect(where), START_S

    def _patience_s(self, directory: int) -> float:
        """Return how long a helper may take to greet. Another command may just have started it."""
        age_s = time.time() - os.stat(str(self._name), dir_fd=directory).st_ctime
        return START_S if 0 <= age_s < START_S else HELLO_S

    def _start_helper(self, where: str, directory: int) -> None:
        """Start a helper with a socket that listens from now on, so that nobody has to wait for it to be there."""
        import subprocess

        name = str(self._name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(where)
            os.chmod(name, 0o600, dir_fd=directory)  # nobody can connect before `listen`
            listener.listen(frames.BACKLOG)
            search = os.pathsep.join(filter(None, (PACKAGE_ROOT, self._environ.get("PYTHONPATH"))))
            words = (str(listener.fileno()), str(self._directory), name, repr(self._timeout_s), str(int(self._strict)))
            helper = subprocess.Popen(
                [sys.executable, "-c", "from clusterctl.transport.keep.helper import main; main()", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**self._environ, "PYTHONPATH": search},
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        threading.Thread(target=helper.wait, daemon=True, name="end-of-a-helper").start()


def _connect(where: str) -> socket.socket:
    """Connect to a socket. Raises OSError, also if so many wait there that the helper seems to be stuck."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock
