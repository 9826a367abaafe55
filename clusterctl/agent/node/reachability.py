"""Test that nodes reach each other: one side listens and proves its identity, the other tries many ports at once.

The other nodes get a token per probe over SSH. A client sends a nonce and a newline; the answer is the SHA-256 of token
and nonce in hex and a newline, so that another program's server on the port is detected.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

CONNECT_S = 5.0
REPLY_S = 10.0
MOST_AT_ONCE = 32  # connections out
MOST_VISITORS = 256  # connections in
NONCE_CHARS = 32
TOKEN_BYTES = 16
PROOF_CHARS = 65

OK, REFUSED, SILENT, NO_ROUTE, MUTE, STRANGER = "ok", "refused", "silent", "no_route", "mute", "stranger"
NO_ROUTES = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENETDOWN, errno.EHOSTDOWN)


class Target(NamedTuple):
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
        self._selector = selectors.DefaultSelector()
        self._listeners = list(listeners)
        self._visitors: dict[socket.socket, tuple[bytes, float]] = {}
        self._wake, self._bell = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.write(self._bell, b"!")
        self._thread.join()
        for sock in (*self._listeners, *self._visitors):
            sock.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._bell)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0):
                if key.data is None:
                    return
                key.data(key.fileobj)
            self._drop(sock for sock, (_, until) in self._visitors.items() if until < time.monotonic())

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client is already gone
            sock, _ = listener.accept()
            if len(self._visitors) >= MOST_VISITORS:
                self._drop([next(iter(self._visitors))])
            sock.setblocking(False)
            self._visitors[sock] = (b"", time.monotonic() + REPLY_S)
            self._selector.register(sock, selectors.EVENT_READ, self._receive)

    def _receive(self, sock: socket.socket) -> None:
        if sock not in self._visitors:
            return  # dropped in the meantime, for a newer one
        received, until = self._visitors[sock]
        try:
            data = sock.recv(NONCE_CHARS + 1)
            received += data
            if received.endswith(b"\n"):
                sock.send(proof(self._token, received[:-1]))
                received = b""
        except OSError:
            data = b""
        if data and len(received) <= NONCE_CHARS:
            self._visitors[sock] = (received, until)
        else:
            self._drop([sock])  # the client closes first, so that the port is free again at once

    def _drop(self, socks: Iterable[socket.socket]) -> None:
        for sock in list(socks):
            del self._visitors[sock]
            self._selector.unregister(sock)
            sock.close()


class _Probe:
    """One connection to a target, from connecting to its proof."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.nonce = secrets.token_hex(NONCE_CHARS // 2).encode()
        self.received = b""
        self.connected = False
        self.until = time.monotonic() + CONNECT_S
        self.sock = socket.socket(socket.AF_INET6 if ":" in target.address else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)

    def connect(self) -> str | None:
        return _outcome(self.sock.connect_ex((self.target.address, self.target.port)))

    def advance(self) -> str | None:
        """Continue when the socket is ready. Return the outcome, or None if there is none yet."""
        if not self.connected:
            failed = _outcome(self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if failed:
                return failed
            self.connected = True
            self.until = time.monotonic() + REPLY_S
        try:
            if not self.received:
                self.sock.send(self.nonce + b"\n")
                self.received = b"?"
                return None
            data = self.sock.recv(PROOF_CHARS)
        except BlockingIOError:
            return None
        except OSError:
            return STRANGER
        self.received += data
        if data and len(self.received) <= PROOF_CHARS:
            return None
        return OK if self.received[1:] == proof(self.target.token, self.nonce) else STRANGER

    @property
    def interest(self) -> int:
        return selectors.EVENT_READ if self.received else selectors.EVENT_WRITE


def _outcome(code: int) -> str | None:
    """Return the outcome for an error of connect(); None if there is no error."""
    if code in (0, errno.EINPROGRESS):
        return None
    if code == errno.ECONNREFUSED:
        return REFUSED
    if code == errno.ETIMEDOUT:
        return SILENT
    return NO_ROUTE if code in NO_ROUTES else STRANGER


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


def try_all(targets: Sequence[Target]) -> list[Result]:
    """Probe every target, at most 32 at a time; each has 5 s to connect and 10 s to answer."""
    todo = deque(targets)
    results: list[Result] = []
    with selectors.DefaultSelector() as selector:

        def finish(one: _Probe, outcome: str) -> None:
            one.sock.close()
            results.append(Result(one.target.node, one.target.address, one.target.port, outcome))

        active: set[_Probe] = set()
        while todo or active:
            while todo and len(active) < MOST_AT_ONCE:
                one = _Probe(todo.popleft())
                failed = one.connect()
                if failed:
                    finish(one, failed)
                    continue
                active.add(one)
                selector.register(one.sock, one.interest, one)
            now = time.monotonic()
            ready = selector.select(max(0.0, min((one.until for one in active), default=now) - now))
            for one in [key.data for key, _ in ready]:
                outcome = one.advance()
                if outcome:
                    active.discard(one)
                    selector.unregister(one.sock)
                    finish(one, outcome)
                else:
                    selector.modify(one.sock, one.interest, one)
            for one in [one for one in active if one.until < time.monotonic()]:
                active.discard(one)
                selector.unregister(one.sock)
                finish(one, MUTE if one.connected else SILENT)
    return sorted(results)
