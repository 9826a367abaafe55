"""Serves pieces to the nodes of a run. One thread for each connection: a piece server has nothing else to do."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from clusterctl.common.file_transfer import CHUNK_BYTES, OpenedFile, TransferError
from clusterctl.transfer.protocol import LineReader, PieceAnswer, PieceFile, PieceGoneError, PieceRequest, request_of
from clusterctl.transfer.tls import peer_node

MOST_PEERS = 128  # the others wait in the queue of the system
MOST_OF_A_NODE = 64
SPARE_STRANGERS = 64  # connections without a complete handshake, besides two of each node: the oldest goes first
HANDSHAKE_S = 10.0
IDLE_S = 20.0  # clients connect again
HEARTBEAT_EVERY_S = 5.0  # between signs of life to a peer that waits
RETRY_S = 0.1
HEARTBEAT_BYTES = 64 << 20  # of a piece that is verified, between two signs of life


class PieceServer:
    """`find` returns the places on this node where a piece may be; `is_named` is true for those that a manifest here
    names with this size and checksum. A run has so many `members`.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        find: Callable[[PieceFile], Iterable[Path]],
        is_named: Callable[[PieceFile], bool],
        members: int = 2,
    ) -> None:
        self._listener = listener
        self._context = context
        self._find = find
        self._is_named = is_named
        self._peers = threading.BoundedSemaphore(MOST_PEERS)
        self._strangers: deque[ssl.SSLSocket] = deque()
        self._most_strangers = SPARE_STRANGERS + 2 * members
        self._of_node: Counter[int] = Counter()
        self._verifier = _Verifier()
        self._closed = False

    def serve_forever(self) -> None:
        """Accept connections until `close` is called."""
        self._listener.setblocking(True)
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # out of descriptors, perhaps for a moment
                time.sleep(RETRY_S)
                continue
            try:
                self._accept(sock)
            except (OSError, RuntimeError):  # out of threads
                sock.close()

    def close(self) -> None:
        """End `serve_forever`, but not the connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, sock: socket.socket) -> None:
        sock.settimeout(HANDSHAKE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer and its bytes are two writes
        tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._strangers.append(tls)
        try:
            threading.Thread(target=self._welcome, args=(tls,), daemon=True).start()
        except RuntimeError:
            self._forget(tls)
            tls.close()
            raise
        if len(self._strangers) > self._most_strangers:
            with contextlib.suppress(OSError, IndexError):
                self._strangers.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _welcome(self, tls: ssl.SSLSocket) -> None:
        try:
            with tls:
                tls.do_handshake()
                node = peer_node(tls)
                self._forget(tls)
                tls.settimeout(IDLE_S)
                with self._counted(node), self._slot(tls):
                    self._serve(tls)
        except (OSError, ValueError):  # of a peer that went away, or is none
            pass
        finally:
            self._forget(tls)

    @contextlib.contextmanager
    def _counted(self, node: int) -> Iterator[None]:
        """Limit the connections of a node. Raises TransferError beyond that."""
        self._of_node[node] += 1
        try:
            if self._of_node[node] > MOST_OF_A_NODE:
                raise TransferError(f"too many connections of node{node}")
            yield
        finally:
            self._of_node[node] -= 1

    @contextlib.contextmanager
    def _slot(self, tls: ssl.SSLSocket) -> Iterator[None]:
        """Wait until the peer's turn has come."""
        while not self._peers.acquire(timeout=HEARTBEAT_EVERY_S):
            tls.sendall(b"\n")
        try:
            yield
        finally:
            self._peers.release()

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
                _send(tls, {"bytes": request.stop - request.start})
                for data in source.read(request.start, request.stop):
                    tls.sendall(data)

    def _open(self, request: PieceRequest, heartbeat: Callable[[], None]) -> OpenedFile:
        piece, damaged = request.piece, False
        for path in self._find(piece):
            try:
                source = OpenedFile(path)
            except (OSError, ValueError):
                continue
            try:
                is_known = not request.verify and self._is_named(piece)
                if source.size == piece.bytes and (is_known or self._verifier.is_sound(source, piece, heartbeat)):
                    return source
            except BaseException:
                source.close()
                raise
            source.close()
            damaged = True
        if damaged:
            raise TransferError(f"it has only a damaged {piece.file} of {piece.tag}")
        raise PieceGoneError(f"it does not have {piece.file} of {piece.tag}")


class _Verifier:
    """Compares files with their checksums, each once."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, ...], str] = {}
        self._lock = threading.Lock()

    def is_sound(self, source: OpenedFile, piece: PieceFile, heartbeat: Callable[[], None]) -> bool:
        status = source.status
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        while not self._lock.acquire(timeout=HEARTBEAT_EVERY_S):
            heartbeat()
        try:
            if key not in self._digests:
                self._digests[key] = source.sha256(_sometimes(heartbeat))
        finally:
            self._lock.release()
        return self._digests[key] == piece.sha256


def _sometimes(heartbeat: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `heartbeat` once for every HEARTBEAT_BYTES that are read in chunks."""
    count = 0

    def called() -> None:
        nonlocal count
        count += 1
        if count % (HEARTBEAT_BYTES // CHUNK_BYTES) == 0:
            heartbeat()

    return called


def _send(tls: ssl.SSLSocket, answer: PieceAnswer) -> None:
    tls.sendall(json.dumps(answer).encode() + b"\n")
