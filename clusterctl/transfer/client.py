"""Reads pieces from the piece server of another node."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from clusterctl.common.file_transfer import TransferError
from clusterctl.transfer.protocol import LineReader, PieceFile, PieceGoneError, PieceRequest, answer_of
from clusterctl.transfer.tls import peer_node

CONNECT_S = 10.0


class PieceClient:
    """A connection to the piece server of `node`. Every error is a TransferError that names the node.

    `timeout_s` is the longest silence; a server that is busy with a large piece is not silent.
    """

    def __init__(self, node: int, endpoint: str, context: ssl.SSLContext, timeout_s: float = 30.0) -> None:
        self._node = node
        host, _, port = endpoint.rpartition(":")
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except (OSError, ValueError) as exc:
            raise self._error(exc) from exc
        try:
            self._sock = context.wrap_socket(sock)  # closes it if it fails
            if (found := peer_node(self._sock)) != node:
                self._sock.close()
                raise TransferError(f"node{found} answered instead")
            self._sock.settimeout(timeout_s)
        except (OSError, ValueError) as exc:
            sock.close()
            raise self._error(exc) from exc
        self._reader = LineReader(self._sock)

    def read(self, piece: PieceFile, start: int, stop: int, *, verify: bool = True) -> bytes:
        """Return the bytes from `start` to `stop` of a piece. With `verify` the server checks the whole piece first."""
        return b"".join(self.stream(piece, start, stop, verify=verify))

    def stream(self, piece: PieceFile, start: int, stop: int, *, verify: bool = False) -> Iterator[bytes]:
        """Yield these bytes in parts."""
        try:
            self._sock.sendall(PieceRequest(piece, start, stop, verify).to_line())
            while (line := self._reader.line()) == b" ":
                pass
            left = answer_of(line)
            if left != stop - start:
                raise TransferError(f"it offers {left} bytes of {piece.file} instead of {stop - start}")
            while left:
                data = self._reader.some(left)
                left -= len(data)
                yield data
        except (OSError, ValueError) as exc:
            self.close()
            raise self._error(exc) from exc

    def close(self) -> None:
        self._sock.close()

    def _error(self, exc: Exception) -> TransferError:
        kind = PieceGoneError if isinstance(exc, PieceGoneError) else TransferError
        reason = "no answer in time" if isinstance(exc, TimeoutError) else getattr(exc, "strerror", None) or str(exc)
        return kind(f"node{self._node}: {reason}")
