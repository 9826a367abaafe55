"""Test that nodes reach each other: one side listens and proves its identity, the other tries many ports at once.

The other nodes get a token per probe over SSH. A client sends a nonce and a newline; the answer is the SHA-256 of token
and nonce in hex and a newline, so that another program's server on the port is detected.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import secrets
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, NamedTuple

from clusterctl.agent.event_loop import EventLoop

CONNECT_S = 5.0
REPLY_S = 10.0
MOST_AT_ONCE = 32  # connections out
MOST_VISITORS = 256  # connections in
NONCE_CHARS = 32
TOKEN_BYTES = 16
PROOF_CHARS = 65

OK, REFUSED, SILENT, NO_ROUTE, MUTE, STRANGER = "ok", "refused", "silent", "no_route", "mute", "stranger"
NO_ROUTES = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENETDOWN, errno.EHOSTDOWN)


class ProbeTarget(NamedTuple):
    """A listening port of another node, and the token of its probe."""

    node: int
    address: str
    port: int
    token: str


class Result(NamedTuple):
    """The outcome of a probe: `ok`, `refused`, `silent` (no answer at all), `no_route`, `mute` or `stranger`."""

    node: int
    address: str
    port: int
    outcome: str


def proof(token: str, nonce: bytes) -> bytes:
    return hashlib.sha256(token.encode() + nonce).hexdigest().encode() + b"\n"


class Answerer:
    """Answers all clients, in its own thread, until it is closed. Owns its listening sockets."""

    def __init__(self, listeners: Sequence[socket.socket], token: str) -> None:
        self._token = token
        self._listeners = list(listeners)
        self._visitors: dict[socket.socket, bytes] = {}
        self._loop = EventLoop()
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.watch(listener, partial(self._accept, listener))
        self._end = self._loop.run_in_thread("answerer")

    def close(self) -> None:
        self._end()
        for sock in (*self._listeners, *self._visitors):
            sock.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client is already gone
            sock, _ = listener.accept()
            if len(self._visitors) >= MOST_VISITORS:
                self._drop(next(iter(self._visitors)))
            sock.setblocking(False)
            self._visitors[sock] = b""
            self._loop.watch(sock, partial(self._receive, sock))
            self._loop.after(REPLY_S, partial(self._drop, sock))

    def _receive(self, sock: socket.socket) -> None:
        received = self._visitors[sock]
        try:
            data = sock.recv(NONCE_CHARS + 1)
            received += data
            if received.endswith(b"\n"):
                sock.send(proof(self._token, received[:-1]))
                received = b""
        except OSError:
            data = b""
        if data and len(received) <= NONCE_CHARS:
            self._visitors[sock] = received
        else:
            self._drop(sock)  # the client closes first, so that the port is free again at once

    def _drop(self, sock: socket.socket) -> None:
        if self._visitors.pop(sock, None) is not None:
            self._loop.unwatch(sock)
            sock.close()


class _Probe:
    """One connection to a target, from connecting to its proof; `done` is called once, with its outcome."""

    def __init__(self, loop: EventLoop, target: ProbeTarget, done: Callable[[Result], None]) -> None:
        self._loop = loop
        self._target = target
        self._done = done
        self._nonce = secrets.token_hex(NONCE_CHARS // 2).encode()
        self._received = b""
        loop.connect((target.address, target.port), CONNECT_S, self._connected)

    def _connected(self, sock: socket.socket, error: int) -> None:
        self._sock = sock
        self._timer = self._loop.after(REPLY_S, partial(self._finish, MUTE))
        if error:
            self._finish(_outcome(error))
            return
        try:
            sock.send(self._nonce + b"\n")  # fits into the buffer of a new connection
        except OSError:
            self._finish(STRANGER)
            return
        self._loop.watch(sock, self._receive)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(PROOF_CHARS)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) >= PROOF_CHARS:
            is_proof = self._received == proof(self._target.token, self._nonce)
            self._finish(OK if is_proof else STRANGER)

    def _finish(self, outcome: str) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._sock)
        self._sock.close()
        self._done(Result(self._target.node, self._target.address, self._target.port, outcome))


def _outcome(error: int) -> str:
    """Return the outcome for an error of connect()."""
    if error == errno.ECONNREFUSED:
        return REFUSED
    if error == errno.ETIMEDOUT:
        return SILENT
    return NO_ROUTE if error in NO_ROUTES else STRANGER


@contextlib.contextmanager
def answering(listeners: Sequence[socket.socket]) -> Iterator[list[list[Any]]]:
    """Answer clients on these sockets within the context. Yield [port, token] of each."""
    if not listeners:
        yield []
        return
    token = secrets.token_hex(TOKEN_BYTES)
    answerer = Answerer(listeners, token)
    try:
        yield [[sock.getsockname()[1], token] for sock in listeners]
    finally:
        answerer.close()


def try_all(targets: Sequence[ProbeTarget]) -> list[Result]:
    """Probe every target, at most 32 at a time; each has 5 s to connect and 10 s to answer."""
    todo = deque(targets)
    results: list[Result] = []
    loop = EventLoop()

    def begin_next() -> None:
        if todo:
            _Probe(loop, todo.popleft(), finished)
        elif len(results) == len(targets):
            loop.stop()

    def finished(result: Result) -> None:
        results.append(result)
        begin_next()

    with contextlib.closing(loop):
        for _ in range(MOST_AT_ONCE):
            begin_next()
        loop.run()
    return sorted(results)
