"""AES-256-GCM by the libcrypto of this machine (OpenSSL), for which Python has no module.

NIST SP 800-38D, https://doi.org/10.6028/NIST.SP.800-38D. Every record has a number, which is its nonce, and no two have
the same under one key. A key is replaced after so many records that it never seals more than 2**38 bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hmac
import struct
from pathlib import Path
from typing import Any, NamedTuple

TAG_BYTES = 16
MOST_BYTES = 1 << 18  # of a record: sealed and opened in the cache
_RECORDS_PER_KEY = 1 << 20
_NONCE = struct.Struct("<4xQ")
_NAMES = ("libcrypto.so.3", "libcrypto.so.1.1")
_GET_TAG, _SET_TAG = 0x10, 0x11  # EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG
_AS_BEFORE = -1
#: A call for fewer bytes keeps the interpreter's lock: other threads would hold it for longer than the call lasts.
_LONG_BYTES = 16_384
#: What a processor has that seals faster than CURVE does, by the names in /proc/cpuinfo.
_INSTRUCTIONS = ({"aes", "pclmulqdq"}, {"aes", "pmull"})


class _Library(NamedTuple):
    new: Any
    free: Any
    init: Any
    control: Any
    finish: Any
    update: Any
    update_long: Any
    aes_256_gcm: int


class Cipher:
    """Seals or opens the records of one direction, in order. Not thread-safe."""

    def __init__(self, key: bytes, *, seals: bool) -> None:
        """Raises OSError if this machine has no AES-256-GCM."""
        library = load()
        if library is None:
            raise OSError("there is no AES-256-GCM on this machine")
        self._library = library
        self._context = library.new()
        self._key, self._number = key, 0
        self._length = ctypes.c_int()
        self._length_at = ctypes.addressof(self._length)
        if library.init(self._context, library.aes_256_gcm, None, None, None, int(seals)) != 1:
            raise OSError("libcrypto has no AES-256-GCM")

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self._library.free(self._context)

    def seal(self, data: int | bytes, size: int, place: int) -> None:
        """Write the sealed bytes of `data` and their tag to an address. `data` may be an address too."""
        self._transform(data, size, place)
        finished = self._library.finish(self._context, place + size, self._length_at)
        if finished + self._library.control(self._context, _GET_TAG, TAG_BYTES, place + size) != 2:
            raise OSError("libcrypto cannot seal")

    def open(self, sealed: int, size: int, place: int) -> bool:
        """Write the plain bytes of a record to an address. Return False if they are not what was sealed."""
        self._transform(sealed, size, place)
        is_set = self._library.control(self._context, _SET_TAG, TAG_BYTES, sealed + size) == 1
        return is_set and bool(self._library.finish(self._context, place + size, self._length_at) == 1)

    def _transform(self, data: int | bytes, size: int, place: int) -> None:
        library, number, key = self._library, self._number, None
        if number % _RECORDS_PER_KEY == 0:
            key = self._key = hmac.digest(self._key, b"next", "sha256")
        self._number = number + 1
        begun = library.init(self._context, None, None, key, _NONCE.pack(number), _AS_BEFORE)
        update = library.update if size < _LONG_BYTES else library.update_long
        if begun + update(self._context, place, self._length_at, data, size) != 2:
            raise OSError("libcrypto does not encrypt or decrypt")


@functools.cache
def load() -> _Library | None:
    """Return the functions of libcrypto; None if this machine has none, or would be slow."""
    if not has_instructions(Path("/proc/cpuinfo")):
        return None
    for name in _NAMES:
        with contextlib.suppress(OSError, AttributeError):
            return _functions(name)
    return None


def has_instructions(cpu_info: Path) -> bool:
    """Return True if the first processor has instructions for AES-GCM."""
    try:
        with cpu_info.open(encoding="ascii", errors="replace") as f:
            first = f.read(16_384)
    except OSError:
        return False
    words = {word for line in first.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    return any(needed <= words for needed in _INSTRUCTIONS)


def _functions(name: str) -> _Library:
    held, released = ctypes.PyDLL(name), ctypes.CDLL(name)
    pointer, integer = ctypes.c_void_p, ctypes.c_int

    def function(library: Any, symbol: str, result: Any, *arguments: Any) -> Any:
        found = getattr(library, symbol)
        found.restype, found.argtypes = result, arguments
        return found

    update = (integer, pointer, pointer, pointer, pointer, integer)
    return _Library(
        new=function(held, "EVP_CIPHER_CTX_new", pointer),
        free=function(held, "EVP_CIPHER_CTX_free", None, pointer),
        init=function(held, "EVP_CipherInit_ex", integer, pointer, pointer, pointer, pointer, pointer, integer),
        control=function(held, "EVP_CIPHER_CTX_ctrl", integer, pointer, integer, integer, pointer),
        finish=function(held, "EVP_CipherFinal_ex", integer, pointer, pointer, pointer),
        update=function(held, "EVP_CipherUpdate", *update),
        update_long=function(released, "EVP_CipherUpdate", *update),
        aes_256_gcm=function(held, "EVP_aes_256_gcm", pointer)(),
    )
