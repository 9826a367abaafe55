"""The messages between a command and its helper: one letter, the length, and the data.

The helper greets with HELLO. A command answers with a request, and only then is anything begun: OPEN with the server
and the command to run there, DIAL with a server to connect to, LIST with servers of which the helper says to which it
is not connected, or END. The rest of a connection belongs to that.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

HELLO = b"H"
OPEN = b"G"
DIAL = b"D"
LIST = b"L"
END = b"Z"
# From the helper: a secret is needed, the command was sent or could not be, its streams, its exit code, an error.
QUESTION = b"Q"
BEGUN = b"B"
DECLINED = b"N"
OUTPUT = b"O"
ERRORS = b"R"
OUTPUT_ENDS = b"T"
EXIT = b"X"
FAILURE = b"F"
# From the command: the secret, input, the end of input, and that the running agent is to be kept for the next command.
SECRET = b"S"
INPUT = b"I"
INPUT_ENDS = b"E"
KEEP = b"K"

BACKLOG = 1024  # of clients that connect at the same time
HEADER = struct.Struct("!cI")
MOST_BYTES = 8 << 20
READ_BYTES = 1 << 18


def frame(kind: bytes, data: bytes | memoryview = b"") -> bytes:
    return b"".join((HEADER.pack(kind, len(data)), data))


def json_frame(kind: bytes, value: Mapping[str, Any] | None = None) -> bytes:
    return frame(kind, json.dumps(value or {}).encode())


class Frames:
    """Reads the frames of one socket, in one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()

    def arrived(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the frames that have been read whole. Raises ConnectionError for one that is none of ours."""
        while len(self._data) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._data)
            if size > MOST_BYTES:
                raise ConnectionError("a frame is too long")
            end = HEADER.size + size
            if len(self._data) < end:
                return
            body = bytes(self._data[HEADER.size : end])
            del self._data[:end]
            yield kind, body

    def fill(self) -> bool:
        """Read what is there, or wait for it as long as the socket's timeout. Returns False at the end."""
        piece = self.sock.recv(READ_BYTES)
        self._data += piece
        return bool(piece)

    def next(self) -> tuple[bytes, bytes]:
        """Return the next frame. Raises EOFError at the end, TimeoutError or another OSError."""
        while True:
            for found in self.arrived():
                return found
            if not self.fill():
                raise EOFError
