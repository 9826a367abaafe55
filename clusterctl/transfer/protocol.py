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
from typing import Annotated, NamedTuple, TypedDict

from clusterctl.common import manifest
from clusterctl.common.file_transfer import CHUNK_BYTES, Sha256, TransferError
from clusterctl.common.requests import JobId, RunName
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import Bound, Count, fits, reader

MAX_LINE = 4096
MAX_MESSAGE = 300


def _is_of_save(name: str) -> bool:
    return name == manifest.NAME or manifest.is_file_name(name)


Tag = Annotated[str, Bound("the tag of a save", manifest.is_tag)]
SaveFileName = Annotated[str, Bound("the name of a file of a save", _is_of_save)]


class PieceGoneError(TransferError):
    """The other node does not have the piece, or not any more."""


class PieceFile(NamedTuple):
    """A file of a save: a piece, or `manifest.json`. `run` is the run that wrote it; `bytes` its size."""

    job: JobId
    run: RunName
    tag: Tag
    file: SaveFileName
    bytes: Count
    sha256: Sha256


class PieceQuestion(TypedDict):
    """A request as it is sent. Nothing may be added to it: servers of earlier versions refuse it then."""

    job: JobId
    run: RunName
    tag: Tag
    file: SaveFileName
    bytes: Count
    sha256: Sha256
    start: Count
    stop: Count
    verify: bool


class PieceAnswer(TypedDict, total=False):
    bytes: Count
    error: str
    gone: bool


class PieceRequest(NamedTuple):
    """Bytes `start` to `stop` of a piece. With `verify` the server compares the whole piece with its checksum first."""

    piece: PieceFile
    start: int
    stop: int
    verify: bool

    def to_line(self) -> bytes:
        job, run, tag, file, size, sha256 = self.piece
        names: PieceQuestion = {
            "job": job,
            "run": run,
            "tag": tag,
            "file": file,
            "bytes": size,
            "sha256": sha256,
            "start": self.start,
            "stop": self.stop,
            "verify": self.verify,
        }
        return json.dumps(names).encode() + b"\n"


def request_of(line: bytes) -> PieceRequest:
    """Return the request in a line of a peer. Raises ValueError for any that our clients never send."""
    asked: PieceQuestion = reader(PieceQuestion)(parse(line))
    if asked.keys() - PieceQuestion.__annotations__.keys():
        raise ValueError("unknown fields")
    piece = PieceFile(asked["job"], asked["run"], asked["tag"], asked["file"], asked["bytes"], asked["sha256"])
    if not asked["start"] <= asked["stop"] <= piece.bytes:
        raise ValueError("not a range of the piece")
    return PieceRequest(piece, asked["start"], asked["stop"], asked["verify"])


def is_sound(piece: PieceFile) -> bool:
    """Return True if the names cannot lead to any other file than one of a save, and the numbers are ones."""
    return fits(PieceFile, [*piece])


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


def answer_of(line: bytes) -> int:
    """Return the number of bytes that an answer announces. Raises TransferError with the server's message."""
    try:
        answer: PieceAnswer = reader(PieceAnswer)(parse(line))
    except ValueError:
        answer = {}
    if "error" in answer:
        raise (PieceGoneError if answer.get("gone") else TransferError)(answer["error"][:MAX_MESSAGE])
    if "bytes" not in answer:
        raise TransferError("the other side sent a malformed answer")
    return answer["bytes"]
