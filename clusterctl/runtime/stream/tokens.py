"""The beginning of a stream: the trainer sends its rank and a token, the lane proves that it knows the token.

The trainer has the token from the reply to its hello, over a connection that knows the trainer's key. A token is for
one rank, one lane and one stream.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections import deque

_MAGIC = b"CCST\1\0\0\0"
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
        """Return the rank that a greeting is from, and the answer to it; None if it has no good token."""
        magic, rank, token = _GREETING.unpack(greeting)
        for known in list(self._by_rank.get(rank, ())) if magic == _MAGIC else ():
            if hmac.compare_digest(known, token):
                self._by_rank[rank].remove(known)
                return rank, answer_to(token)
        return None


def greeting(rank: int, token: bytes) -> bytes:
    return _GREETING.pack(_MAGIC, rank, token)


def answer_to(token: bytes) -> bytes:
    """Return what only a lane that knows the token answers."""
    return hmac.digest(token, _MAGIC, "sha256")
