"""Streams between hosts of a run with keys: records that are sealed with AES-256-GCM.

Both ends derive a key for each direction from the token, which came over CURVE. On the socket a record is the length of
its plain bytes (uint32, little-endian), the sealed bytes, which are as many, and a tag of 16 bytes. A record that was
changed, cut, repeated, left out or moved does not fit its tag; then the stream breaks.

AES-256-GCM (NIST SP 800-38D, https://doi.org/10.6028/NIST.SP.800-38D) is that of the package cryptography, which a node
may lack. The number of a record is its nonce, and no two have the same under one key. A key is replaced after so many
records that it never seals more than 2**38 bytes.
"""

from __future__ import annotations

import functools
import hmac
import importlib.util
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.stream.framed import AT_ONCE, SHORT_BYTES, Stream
from clusterctl.runtime.stream.tokens import keys_from

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES = 16
MOST_BYTES = 1 << 18  # of a record: sealed and opened in the cache
_RECORDS_PER_KEY = 1 << 20
_NONCE = struct.Struct("<4xQ")
_LENGTH = struct.Struct("<I")
_MORE_BYTES = _LENGTH.size + TAG_BYTES
_AHEAD_BYTES = 16_384  # read when no length is known
_BUFFER_BYTES = _AHEAD_BYTES + MOST_BYTES + _MORE_BYTES
#: Features of a processor that seals faster than CURVE does, by the names in /proc/cpuinfo.
_INSTRUCTIONS = ({"aes", "pclmulqdq"}, {"aes", "pmull"})


@functools.cache
def load() -> type[AESGCM] | None:
    """Return the cipher of the package cryptography; None if it is absent, too old, or would be slow here."""
    if not has_instructions(Path("/proc/cpuinfo")):
        return None
    if importlib.util.find_spec("cffi") is None:
        return None  # without it, to import cryptography fails with an exception that is not an Exception
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM if hasattr(AESGCM, "encrypt_into") and hasattr(AESGCM, "decrypt_into") else None


def has_instructions(cpu_info: Path) -> bool:
    """Return True if the first processor has instructions for AES-GCM."""
    try:
        with cpu_info.open(encoding="ascii", errors="replace") as f:
            first = f.read(16_384)
    except OSError:
        return False
    words = {word for line in first.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    return any(needed <= words for needed in _INSTRUCTIONS)


class Cipher:
    """Seals or opens the records of one direction, in order. Not thread-safe."""

    def __init__(self, key: bytes) -> None:
        """Raises OSError if this machine has no AES-256-GCM."""
        kind = load()
        if kind is None:
            raise OSError("this machine has no AES-256-GCM")
        self._kind = kind
        self._key, self._number = key, 0
        self._under_key: AESGCM

    def seal(self, data: Any, place: memoryview) -> None:
        """Write the sealed bytes of `data` and their tag to `place`, which is as long as both."""
        nonce = self._next()
        self._under_key.encrypt_into(nonce, data, None, place)

    def open(self, sealed: memoryview, place: memoryview) -> bool:
        """Write the plain bytes of a record and its tag to `place`, which is as long as the former.

        Return False if they are not what was sealed; what is in `place` must not be used then.
        """
        from cryptography.exceptions import InvalidTag

        nonce = self._next()
        try:
            self._under_key.decrypt_into(nonce, sealed, None, place)
        except InvalidTag:
            return False
        return True

    def _next(self) -> bytes:
        """Return the nonce of the next record, whose key is in place."""
        number = self._number
        if number % _RECORDS_PER_KEY == 0:
            self._key = hmac.digest(self._key, b"next", "sha256")
            self._under_key = self._kind(self._key)
        self._number = number + 1
        return _NONCE.pack(number)


class SealedStream(Stream):
    """A stream of sealed records between the trainer `rank` and a lane, at either end of it."""

    def __init__(
        self, sock: socket.socket, rank: int, lane: int, token: bytes, *, is_lane: bool, most_queued: int | None = None
    ) -> None:
        super().__init__(sock, rank, most_queued)
        to_lane, to_trainer = keys_from(token, rank, lane)
        self._sealer = Cipher(to_trainer if is_lane else to_lane)
        self._opener = Cipher(to_lane if is_lane else to_trainer)
        self._outgoing = memoryview(bytearray(MOST_BYTES + _MORE_BYTES))
        self._unsent = self._outgoing[:0]
        self._incoming = memoryview(bytearray(_BUFFER_BYTES))
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
        data: memoryview | bytes
        if size > SHORT_BYTES:
            whole = memoryview(pieces[0])
            size = min(size, MOST_BYTES)
            data = whole[:size]
            pieces[:1] = [whole[size:]] if size < len(whole) else []
        else:
            while count < len(pieces) and size + len(pieces[count]) <= SHORT_BYTES:
                size += len(pieces[count])
                count += 1
            data = b"".join(pieces[:count])
            del pieces[:count]
        self._sealer.seal(data, self._outgoing[_LENGTH.size : size + _MORE_BYTES])
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
                self._open(place[:size])
                return size
            opened = memoryview(bytearray(size))
            self._open(opened)
            self._plain = opened
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

    def _open(self, place: memoryview) -> None:
        """Open the next record, whose plain bytes are as long as `place`."""
        end = self._record + len(place) + _MORE_BYTES
        if not self._opener.open(self._incoming[self._record + _LENGTH.size : end], place):
            raise WireError("a stream with a record that was changed on its way")
        self._record = end


def _is_possible(size: int) -> bool:
    return 0 < size <= MOST_BYTES
