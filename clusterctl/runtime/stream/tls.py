"""Streams between hosts of a run with keys: TLS 1.3 between two nodes of the run, for short messages.

Both ends have a certificate of the run's authority. The offer, which came over CURVE, names the lane's certificate, so
that no other node of the run can stand in for the lane. Python's TLS has no `sendmsg`, sends and receives a record of
16 KB at a time, and must be given the same bytes again after it could not send them. Long messages are left to CURVE.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from typing import Any

from clusterctl.common.paths import RunPaths
from clusterctl.runtime.stream import tcp
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.opening import Opening
from clusterctl.runtime.stream.tokens import greeting
from clusterctl.transfer.tls import run_context

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def open_context(run: RunPaths, *, server: bool) -> ssl.SSLContext | None:
    """Return the context of a node for streams; None if this run or this Python has none."""
    if not ssl.HAS_TLSv1_3 or not run.tls.exists():
        return None
    try:
        context = run_context(run, server=server)
    except OSError:
        return None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if server:
        context.num_tickets = 0  # no stream is resumed
    return context


def certificate_of(run: RunPaths) -> str:
    """Return the digest of this node's certificate."""
    own = re.findall("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", run.tls.read_text(), re.DOTALL)[0]
    return _digest(ssl.PEM_cert_to_DER_cert(own))


def require_certificate(sock: ssl.SSLSocket, digest: Any) -> None:
    """Raise ConnectionError if the other end has another certificate."""
    if _digest(sock.getpeercert(binary_form=True) or b"") != digest:
        raise ConnectionError("another node answered")


def begin(context: ssl.SSLContext, sock: socket.socket, *, server: bool) -> ssl.SSLSocket:
    """Return a connected socket with TLS, whose handshake has not begun. It does not wait."""
    sock.setblocking(False)
    return context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)


def shake_hands(sock: ssl.SSLSocket) -> None:
    """Continue the handshake. Raises BlockingIOError until it is complete."""
    try:
        sock.do_handshake()
    except _WAITS as exc:
        raise BlockingIOError from exc


class TlsStream(Stream):
    """A stream over TLS. `receive` never waits."""

    most_bytes = 16_384
    sock: ssl.SSLSocket

    @property
    def is_buffered(self) -> bool:
        return self._begin < self._end or self.sock.pending() > 0

    def _set_up(self) -> None:
        self.sock.setblocking(False)

    def _write(self, pieces: list[Any]) -> bool:
        pieces[:] = [b"".join(pieces)]
        try:
            while pieces[0]:
                pieces[0] = memoryview(pieces[0])[self.sock.send(pieces[0]) :]
        except _WAITS:
            return False
        return True

    def _receive_into(self, place: memoryview, flags: int) -> int:
        try:
            return self.sock.recv_into(place)
        except _WAITS as exc:
            raise BlockingIOError from exc


class TlsOpening(Opening):
    """A stream over TLS that is being opened: the token is sent to the lane with this certificate alone."""

    def __init__(
        self, sock: socket.socket, rank: int, token: bytes, until_s: float, context: ssl.SSLContext, certificate: str
    ):
        super().__init__(sock, rank, token, until_s)
        self._certificate = certificate
        self._context = context
        self._is_greeted = False

    def _connect(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "no connection")
        self._sock = begin(self._context, self._sock, server=False)

    def _greet(self) -> bool:
        assert isinstance(self._sock, ssl.SSLSocket)
        if not self._is_greeted:
            shake_hands(self._sock)
            require_certificate(self._sock, self._certificate)
            self._sock.send(greeting(self._rank, self._token))
            self._is_greeted = True
        try:
            return super()._greet()
        except ssl.SSLWantReadError as exc:
            raise BlockingIOError from exc

    def _make(self, wait_s: float) -> Stream:
        tcp.tune(self._sock)
        return TlsStream(self._sock, self._rank)


def _digest(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
