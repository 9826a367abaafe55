"""The requests to a piece server, and its answers: one JSON line each, over mutually authenticated TLS.

A request names a piece and a range of its bytes. The answer is `{"bytes": n}` and the n bytes, or `{"error": message}`,
with `"gone": true` if the node does not have the piece. Empty lines may come first, while the server verifies the
piece. A connection carries one request after the other.

A server sends a file only if the request has its size and its sha256, which are in the manifest of its save: a peer can
read what it knows to exist, and nothing else. Either a manifest of this node names them, or the server compares the
file with them.
"""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

from clusterctl.common import manifest
from clusterctl.common.paths import is_job_name
from clusterctl.common.safe_json import is_whole, parse

MAX_LINE = 4096
MAX_MESSAGE = 300
CHUNK_BYTES = 1 << 18
_DIGEST_CHARS = frozenset("0123456789abcdef")


class TransferError(OSError):
    """A piece cannot be read from another node. The message is for people."""


class PieceGoneError(TransferError):
    """The other node does not have the piece, or not any more."""


class PieceFile(NamedTuple):
    """A file of a save: a piece, or `manifest.json`. `run` is the run that wrote it; `bytes` its size."""

    job: str
    run: str
    tag: str
    file: str
    bytes: int
    sha256: str


class PieceRequest(NamedTuple):
    """Bytes `start` to `stop` of a piece. With `verify` the server compares the whole piece with its checksum first."""

    piece: PieceFile
    start: int
    stop: int
    verify: bool

    def to_line(self) -> bytes:
        fields = {**self.piece._asdict(), "start": self.start, "stop": self.stop, "verify": self.verify}
        return json.dumps(fields).encode() + b"\n"


def request_of(line: bytes) -> PieceRequest:
    """Return the request in a line of a peer. Raises ValueError for any that our clients never send."""
    fields = parse(line)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    names = (*PieceFile._fields, "start", "stop", "verify")
    if sorted(fields) != sorted(names):
        raise ValueError("unknown or missing fields")
    piece = PieceFile(*(fields[name] for name in PieceFile._fields))
    start, stop, verify = fields["start"], fields["stop"], fields["verify"]
    if not is_sound(piece) or not isinstance(verify, bool):
        raise ValueError("not a piece")
    if not (is_whole(start) and is_whole(stop) and 0 <= start <= stop <= piece.bytes):
        raise ValueError("not a range of the piece")
    return PieceRequest(piece, start, stop, verify)


def is_sound(piece: PieceFile) -> bool:
    """Return True if the names cannot lead to any other file than one of a save, and the numbers are ones."""
    job, run, tag, file, size, digest = piece
    named = isinstance(job, str) and is_job_name(job) and isinstance(run, str) and run.isdigit() and run.isascii()
    saved = manifest.is_tag(tag) and (file == manifest.NAME or manifest.is_file_name(file))
    hashed = isinstance(digest, str) and len(digest) == 64 and set(digest) <= _DIGEST_CHARS
    return bool(named and len(run) <= 9 and saved and hashed and is_whole(size) and size >= 0)


class LineReader:
    """Reads lines and then bytes from a blocking socket. Raises TransferError if it ends early."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def line(self) -> bytes:
        """Return the next line without its end; empty at the end of the connection, and for an empty line b" "."""
        while b"\n" not in self._buffer:
            data = self._sock.recv(CHUNK_BYTES) if len(self._buffer) <= MAX_LINE else b""
            if not data and self._buffer:
                raise TransferError("the other side sent no complete line")
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line or b" "

    def some(self, most: int) -> bytes:
        """Return between 1 and `most` bytes."""
        if self._buffer:
            data, self._buffer = self._buffer[:most], self._buffer[most:]
            return data
        data = self._sock.recv(min(most, CHUNK_BYTES))
        if not data:
            raise TransferError("the connection broke")
        return data


def answer_of(line: bytes) -> Any:
    """Return the number of bytes that an answer announces. Raises TransferError with the server's message."""
    try:
        answer = parse(line)
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise (PieceGoneError if answer.get("gone") else TransferError)(answer["error"][:MAX_MESSAGE])
        if isinstance(answer, dict) and is_whole(answer.get("bytes")):
            return answer["bytes"]
    except ValueError:
        pass
    raise TransferError("the other side sent a malformed answer")
