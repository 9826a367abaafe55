"""The server's side of a WebSocket (RFC 6455), as far as kubectl needs it."""

from __future__ import annotations

import base64
import hashlib
import threading
from typing import BinaryIO

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTINUATION, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10


def accept(key: str) -> str:
    """Return the answer to the Sec-WebSocket-Key of a client."""
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


class WebSocket:
    """An open connection. Any thread may send; one receives."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send a binary message. Raises OSError if the client is gone."""
        self._send(BINARY, message)

    def close(self) -> None:
        """Say that all was well, and that nothing more follows."""
        self._send(CLOSE, (1000).to_bytes(2, "big"))

    def receive(self) -> bytes | None:
        """Return the next message, None once the client has closed or is gone."""
        message = b""
        while (frame := self._frame()) is not None:
            is_last, opcode, payload = frame
            if opcode == CLOSE:
                return None
            if opcode == PING:
                self._send(PONG, payload)
            elif opcode in (CONTINUATION, BINARY):
                message += payload
                if is_last:
                    return message
        return None

    def _frame(self) -> tuple[bool, int, bytes] | None:
        try:
            first, second = self._exactly(2)
            size = second & 127
            if size >= 126:
                size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
            mask = self._exactly(4) if second & 128 else bytes(4)
            return bool(first & 128), first & 15, _unmasked(self._exactly(size), mask)
        except (OSError, EOFError, ValueError):  # ValueError: the server has closed it
            return None

    def _exactly(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes([128 | opcode, size])
        elif size < 1 << 16:
            head = bytes([128 | opcode, 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([128 | opcode, 127]) + size.to_bytes(8, "big")
        with self._lock:
            if self._writer.closed:
                raise BrokenPipeError
            self._writer.write(head + payload)


def _unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
