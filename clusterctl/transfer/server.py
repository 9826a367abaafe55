"""Serves pieces to the nodes of a run. One thread for each connection: a piece server has nothing else to do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from clusterctl.common.files import digest_of
from clusterctl.transfer.protocol import (
    CHUNK_BYTES,
    LineReader,
    PieceFile,
    PieceGoneError,
    Request,
    TransferError,
    request_of,
)
from clusterctl.transfer.tls import peer_node

MOST_PEERS = 128  # the others wait in the queue of the system
MOST_STRANGERS = 64  # connections without a complete handshake: the oldest goes first
HANDSHAKE_S = 10.0
IDLE_S = 60.0
BEAT_BYTES = 64 << 20  # of a piece that is verified, between two signs of life


class PieceServer:
    """`find` returns the places on this node where a piece may be."""

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, find: Callable[[PieceFile], Iterable[Path]]
    ) -> None:
        self._listener = listener
        self._context = context
        self._find = find
        self._peers = threading.BoundedSemaphore(MOST_PEERS)
        self._strangers: deque[ssl.SSLSocket] = deque()
        self._verifier = _Verifier()

    def serve_forever(self) -> None:
        """Accept connections until the listening socket is closed."""
        self._listener.setblocking(True)
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(HANDSHAKE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer is followed by its bytes
            try:
                tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:
                sock.close()
                continue
            self._strangers.append(tls)
            if len(self._strangers) > MOST_STRANGERS:
                with contextlib.suppress(OSError, IndexError):
                    self._strangers.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._welcome, args=(tls,), daemon=True).start()

    def _welcome(self, tls: ssl.SSLSocket) -> None:
        try:
            with tls:
                tls.do_handshake()
                peer_node(tls)
                self._forget(tls)
                with self._peers:
                    tls.settimeout(IDLE_S)
                    self._serve(tls)
        except (OSError, ValueError):  # of a peer that went away, or is none
            pass
        finally:
            self._forget(tls)

    def _forget(self, tls: ssl.SSLSocket) -> None:
        with contextlib.suppress(ValueError):
            self._strangers.remove(tls)

    def _serve(self, tls: ssl.SSLSocket) -> None:
        reader = LineReader(tls)
        while line := reader.line():
            try:
                request = request_of(line)
            except (ValueError, RecursionError) as exc:
                _send(tls, {"error": f"malformed request: {exc!s:.80}"})
                return
            try:
                source = self._open(request, lambda: tls.sendall(b"\n"))
            except TransferError as exc:
                _send(tls, {"error": str(exc), "gone": isinstance(exc, PieceGoneError)})
                continue
            with source:
                _send_range(tls, source.fileno(), request)

    def _open(self, request: Request, beat: Callable[[], None]) -> _Source:
        piece, damaged = request.piece, False
        for path in self._find(piece):
            try:
                source = _Source(path)
            except OSError:
                continue
            if source.size == piece.bytes and (not request.verify or self._verifier.is_sound(source, piece, beat)):
                return source
            source.close()
            damaged = True
        if damaged:
            raise TransferError(f"it has only a damaged {piece.file} of {piece.tag}")
        raise PieceGoneError(f"it does not have {piece.file} of {piece.tag}")


class _Source:
    """An open file: a rename or a removal in the meantime does not change what is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        self.size = status.st_size
        self.key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Verifier:
    """Compares files with their checksums, each once."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, ...], str] = {}
        self._lock = threading.Lock()

    def is_sound(self, source: _Source, piece: PieceFile, beat: Callable[[], None]) -> bool:
        while not self._lock.acquire(timeout=5.0):
            beat()
        try:
            if source.key not in self._digests:
                self._digests[source.key] = digest_of(f"/proc/self/fd/{source.fileno()}", _sometimes(beat))
        finally:
            self._lock.release()
        return self._digests[source.key] == piece.sha256


def _sometimes(beat: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `beat` once for every BEAT_BYTES that `digest_of` reads."""
    count = 0

    def called() -> None:
        nonlocal count
        count += 1
        if count % (BEAT_BYTES >> 20) == 0:
            beat()

    return called


def _send(tls: ssl.SSLSocket, answer: dict[str, object]) -> None:
    tls.sendall(json.dumps(answer).encode() + b"\n")


def _send_range(tls: ssl.SSLSocket, fd: int, request: Request) -> None:
    _send(tls, {"bytes": request.stop - request.start})
    at = request.start
    while at < request.stop:
        data = os.pread(fd, min(CHUNK_BYTES, request.stop - at), at)
        if not data:
            raise TransferError(f"{request.piece.file} became shorter while it was read")
        tls.sendall(data)
        at += len(data)
