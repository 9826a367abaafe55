"""The beginning of a stream: trainer and lane prove to each other that they know its token.

The trainer has the token from the reply to its hello, over a connection that knows the trainer's key. A token is for
one rank, one lane and one stream. It is never sent over the stream: everything there is derived from it by HMAC.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections import deque

#: The version of sealed streams, which an offer names. The first one, which offers called `true`, derived keys from the
#: token alone.
SEALED = 2
_MAGIC = b"CCST\1\0\0\0"
_ABOUT_KEYS = struct.Struct("<4sB3xII")
_GREETING = struct.Struct("<8sI32s")
GREETING_BYTES = _GREETING.size
ANSWER_BYTES = 32
#: Tokens of a rank that are good at a time: a repeated hello has a reply of its own.
_MOST_TOKENS = 4


class Tokens:
    """The tokens of one lane that have not been used."""

    def __init__(self) -> None:
        self._by_rank: dict[int, deque[bytes]] = {}

    def make(self, rank: int) -> str:
        token = secrets.token_bytes(32)
        self._by_rank.setdefault(rank, deque(maxlen=_MOST_TOKENS)).append(token)
        return token.hex()

    def redeem(self, greeting: bytes) -> tuple[int, bytes] | None:
        """Return the rank that a greeting is from, and its token; None if it proves none."""
        magic, rank, proof = _GREETING.unpack(greeting)
        for token in list(self._by_rank.get(rank, ())) if magic == _MAGIC else ():
            if hmac.compare_digest(_derived(token, "trainer"), proof):
                self._by_rank[rank].remove(token)
                return rank, token
        return None


def greeting(rank: int, token: bytes) -> bytes:
    return _GREETING.pack(_MAGIC, rank, _derived(token, "trainer"))


def answer_to(token: bytes) -> bytes:
    """Return what only a lane that knows the token answers."""
    return _derived(token, "lane")


def keys_from(token: bytes, rank: int, lane: int) -> tuple[bytes, bytes]:
    """Return the keys of the sealed stream of a trainer and a lane: for records to the lane, and to the trainer."""
    about = _ABOUT_KEYS.pack(b"CCST", SEALED, rank, lane)
    return _derived(token, "key to the lane", about), _derived(token, "key to the trainer", about)


def _derived(token: bytes, purpose: str, about: bytes = _MAGIC) -> bytes:
    return hmac.digest(token, about + purpose.encode(), "sha256")
