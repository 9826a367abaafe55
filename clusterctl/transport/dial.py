"""Authenticated connections to one server: TCP or proxy, handshake, host key, login, retries.

The SSH library is imported after the TCP connection is made, while the server prepares its side.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from clusterctl.transport import failures, paramiko_loader
from clusterctl.transport.failures import Attempts
from clusterctl.transport.known_hosts import HostKey, KnownHosts, judge
from clusterctl.transport.secrets import Ask, Credentials, SecretNeededError
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from paramiko.channel import Channel

    from clusterctl.transport.connection import Connection

ATTEMPTS = 5
BACKOFF_S = 0.2  # after the first attempt, doubled after each further one; jittered
TCP_DEAD_MS = 30_000

T = TypeVar("T")
# An open stream to a server, and a function that ends the proxy it runs through.
Path = tuple["socket.socket | Channel", Callable[[], None]]


class Dialer:
    """Opens connections, at most `max_handshakes` at a time over all threads, so that no sshd drops us."""

    def __init__(self, *, strict: bool, max_handshakes: int, timeout_s: float, ask: Ask | None = None) -> None:
        self._known_hosts = KnownHosts()
        self._secrets = Credentials(ask)
        self._strict = strict
        self._timeout_s = timeout_s
        self._slots = threading.BoundedSemaphore(max_handshakes)
        self._pending: set[Connection] = set()
        self._lock = threading.Lock()
        self._aborts = 0

    def connect(self, target: Target, gateway: Connection | None = None) -> Connection:
        """Return an authenticated connection. Raises UnreachableError, or RefusedError for an untrusted host key."""

        refused: list[str] = []

        def log_in(aborts: int) -> Connection:
            with self._handshake(target, gateway, aborts) as (connection, deadline):
                from clusterctl.transport.login import authenticate

                self._check_host_key(target, connection)
                attempts = Attempts(refused=refused)
                connection.auth_timeout = max(1.0, deadline - time.monotonic())
                if not authenticate(connection, target, attempts, self._secrets):
                    raise _secret_needed(target, attempts)
                connection.watch(*target.alive)
                return connection

        stopped = self._secrets.stopped
        while True:
            self._secrets.wait()
            if stopped.is_set():
                raise failures.interrupted(target.label)
            try:
                return self._with_retries(target, log_in)
            except SecretNeededError as needed:
                # Hold neither a handshake slot nor a connection while the user types.
                if not self._secrets.obtain(needed, stopped) and not stopped.is_set():
                    raise needed.otherwise from None

    def host_key(self, target: Target, gateway: Connection | None = None) -> HostKey:
        """Return the key that the server presents and proves it owns, without checking it or logging in."""

        def look(aborts: int) -> HostKey:
            with self._handshake(target, gateway, aborts) as (connection, _):
                key = _key_of(connection, target)
                connection.close()
                return key

        return self._with_retries(target, look)

    def abort(self) -> None:
        """Make every handshake in flight fail now."""
        self._secrets.stop()
        with self._lock:
            self._aborts += 1
            pending = list(self._pending)
        for connection in pending:
            connection.close()

    def _with_retries(self, target: Target, attempt: Callable[[int], T]) -> T:
        """Retry: sshd drops connections at random when too many are unauthenticated (MaxStartups).

        `attempt` gets the number of aborts so far.
        """
        aborts = self._aborts
        for number in range(1, ATTEMPTS + 1):
            try:
                with self._slots:
                    return attempt(aborts)
            except paramiko_loader.errors() as exc:
                if self._aborts != aborts:
                    raise failures.interrupted(target.label) from exc
                cause = EOFError() if _is_hang_up(exc) else exc
                if number == ATTEMPTS or not (_is_hang_up(exc) or _is_busy_name_server(exc)):
                    raise failures.unreachable(target, cause, self._timeout_s) from exc
            time.sleep(random.uniform(0.5, 1) * BACKOFF_S * 2 ** (number - 1))
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _handshake(self, target: Target, gateway: Connection | None, aborts: int) -> Iterator[tuple[Connection, float]]:
        """Yield a connection after key exchange, and the deadline of the whole attempt. Closes it on failure."""
        deadline = time.monotonic() + self._timeout_s
        known = self._known_hosts.keys(target.known_hosts, target.key_name)
        stream, close_stream = _reach(target, gateway, self._timeout_s)
        paramiko_loader.load()
        from clusterctl.transport.connection import Connection

        # Ask for the recorded type of key, so that a host with several keys is not reported as changed.
        connection = Connection(
            stream, key_types=[key.type for key in known if not key.revoked], after_close=close_stream
        )
        with self._lock:
            self._pending.add(connection)
            is_aborted = self._aborts != aborts
        try:
            if is_aborted:  # while the stream was opened
                raise failures.interrupted(target.label)
            connection.banner_timeout = self._timeout_s + 5
            connection.start_client(timeout=max(0.1, deadline - time.monotonic()))
            if not connection.initial_kex_done:
                raise TimeoutError
            yield connection, deadline
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._pending.discard(connection)

    def _check_host_key(self, target: Target, connection: Connection) -> None:
        if not self._strict:
            return
        key = _key_of(connection, target)
        verdict = judge(self._known_hosts.keys(target.known_hosts, target.key_name), key)
        if verdict.state != "known":
            raise failures.untrusted(target, key, verdict)


def _secret_needed(target: Target, attempts: Attempts) -> SecretNeededError:
    return SecretNeededError(
        failures.not_logged_in(target, attempts),
        keys=attempts.encrypted,
        user=target.user,
        where=target.where,
        takes_password=attempts.takes_password,
        refused=attempts.refused,
    )


def _key_of(connection: Connection, target: Target) -> HostKey:
    key = connection.get_remote_server_key()
    return HostKey(target.key_name, key.get_name(), key.asbytes())


def _is_hang_up(exc: BaseException) -> bool:
    """Return True if the server ended the connection during the handshake, judging by paramiko's messages."""
    if not isinstance(exc, (OSError, EOFError)):
        messages = ("Error reading SSH protocol banner", "Negotiation failed", "No existing session")
        return str(exc).startswith(messages)
    return isinstance(exc, (EOFError, ConnectionResetError, BrokenPipeError))


def _is_busy_name_server(exc: BaseException) -> bool:
    return isinstance(exc, socket.gaierror) and exc.errno == socket.EAI_AGAIN


def _reach(target: Target, gateway: Connection | None, timeout_s: float) -> Path:
    if gateway is not None:
        where = (target.host, target.port)
        return gateway.open_channel("direct-tcpip", where, ("", 0), timeout=timeout_s), lambda: None
    if target.proxy_command:
        return _through_command(target.proxy_command)
    return _tcp(target.host, target.port, timeout_s), lambda: None


def _tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", TCP_DEAD_MS),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


def _through_command(proxy_command: str) -> Path:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            f"exec {proxy_command}",
            shell=True,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    return ours, end
