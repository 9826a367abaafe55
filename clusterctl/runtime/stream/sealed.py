"""Streams between hosts of a run with keys: records that are sealed with AES-256-GCM.

Both ends derive a key for each direction from the token, which came over CURVE. On the socket a record is the length of
its plain bytes (uint32, little-endian), the sealed bytes, which are as many, and a tag of 16 bytes. A record that was
changed, cut, repeated, left out or moved does not fit its tag; then the stream breaks.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Any

import numpy as np

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream import aes_gcm
from clusterctl.runtime.stream.framed import AT_ONCE, SHORT_BYTES, Stream
from clusterctl.runtime.stream.tokens import keys_from

_LENGTH = struct.Struct("<I")
_MORE_BYTES = _LENGTH.size + aes_gcm.TAG_BYTES
_AHEAD_BYTES = 16_384  # read when no length is known
_BUFFER_BYTES = _AHEAD_BYTES + aes_gcm.MOST_BYTES + _MORE_BYTES


class SealedStream(Stream):
    """A stream of sealed records, at either end of it."""

    def __init__(
        self, sock: socket.socket, rank: int, token: bytes, *, is_lane: bool, most_queued: int | None = None
    ) -> None:
        super().__init__(sock, rank, most_queued)
        to_lane, to_trainer = keys_from(token)
        self._sealer = aes_gcm.Cipher(to_trainer if is_lane else to_lane, seals=True)
        self._opener = aes_gcm.Cipher(to_lane if is_lane else to_trainer, seals=False)
        self._outgoing, self._outgoing_at = _memory(aes_gcm.MOST_BYTES + _MORE_BYTES)
        self._unsent = self._outgoing[:0]
        self._incoming, self._incoming_at = _memory(_BUFFER_BYTES)
        self._record, self._arrived = 0, 0  # where the next record begins, and the end of what has arrived
        self._plain = memoryview(b"")  # of a record that did not fit into where it was wanted

    @property
    def is_buffered(self) -> bool:
        return super().is_buffered or len(self._plain) > 0 or self._missing() == 0

    def _write(self, pieces: list[Any]) -> bool:
        try:
            while pieces or self._unsent:
                if not self._unsent:
                    self._seal(pieces)
                self._unsent = self._unsent[self.sock.send(self._unsent, AT_ONCE) :]
        except BlockingIOError:
            return False
        return True

    def _seal(self, pieces: list[Any]) -> None:
        """Make a record of the first pieces, and remove those.

        A long one has records of its own, so that they are opened where its bytes belong.
        """
        size, count = len(pieces[0]), 1
        data: int | bytes
        if size > SHORT_BYTES:
            whole = memoryview(pieces[0])
            size = min(size, aes_gcm.MOST_BYTES)
            data = np.frombuffer(whole, np.uint8).ctypes.data
            pieces[:1] = [whole[size:]] if size < len(whole) else []
        else:
            while count < len(pieces) and size + len(pieces[count]) <= SHORT_BYTES:
                size += len(pieces[count])
                count += 1
            data = b"".join(pieces[:count])
            del pieces[:count]
        self._sealer.seal(data, size, self._outgoing_at + _LENGTH.size)
        _LENGTH.pack_into(self._outgoing, 0, size)
        self._unsent = self._outgoing[: size + _MORE_BYTES]

    def _receive_into(self, place: memoryview, flags: int) -> int:
        if not self._plain:
            missing = self._missing()
            while missing:
                count = self.sock.recv_into(self._incoming[self._arrived :], missing, flags)
                if count == 0:
                    return 0
                self._arrived += count
                missing = self._missing()
            size = self._size()
            if not _is_possible(size):
                raise WireError(f"a stream with a record of {size} bytes")
            if size <= len(place):
                self._open(size, ctypes.addressof(ctypes.c_char.from_buffer(place)))
                return size
            self._plain, address = _memory(size)
            self._open(size, address)
        count = min(len(place), len(self._plain))
        place[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _missing(self) -> int:
        """Return how many bytes to read next, for which there is room: 0 if a whole record has arrived, or none can."""
        have, missing = self._arrived - self._record, _AHEAD_BYTES
        if have >= _LENGTH.size:
            missing = self._size() + _MORE_BYTES - have
            if missing <= 0 or not _is_possible(self._size()):
                return 0
            missing += _LENGTH.size  # of the next record, so that no more of it is read than has to be moved
        if self._record:
            self._incoming[:have] = bytes(self._incoming[self._record : self._arrived])
            self._record, self._arrived = 0, have
        return missing

    def _size(self) -> int:
        size: int = _LENGTH.unpack_from(self._incoming, self._record)[0]
        return size

    def _open(self, size: int, place: int) -> None:
        if not self._opener.open(self._incoming_at + self._record + _LENGTH.size, size, place):
            raise WireError("a stream with a record that was changed on its way")
        self._record += size + _MORE_BYTES


def _is_possible(size: int) -> bool:
    return 0 < size <= aes_gcm.MOST_BYTES


def _memory(size: int) -> tuple[memoryview, int]:
    memory = bytearray(size)
    return memoryview(memory), ctypes.addressof(ctypes.c_char.from_buffer(memory))
