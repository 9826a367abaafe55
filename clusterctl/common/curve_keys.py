"""The CURVE keys of processes: those of X25519 (RFC 7748, section 5), written in Z85 (ZeroMQ's RFC 32).

A node may have no more than the standard library. So it computes the public keys of processes that move to it itself: a
few milliseconds for each.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

PRIME = 2**255 - 19
BASE_POINT = 9
A24 = 121_665
_DIGITS = "".join(map(chr, (*range(48, 58), *range(65, 91), *range(97, 123))))  # 0-9, A-Z, a-z
_AS_Z85 = str.maketrans(
    _DIGITS + "!#$%&()*+-;<=>?@^_`{|}~",  # of base64.b85encode
    _DIGITS[:10] + _DIGITS[36:] + _DIGITS[10:36] + ".-:+=^!/*?&<>()[]{}@%$#",  # of RFC 32
)


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret one; both have 32 bytes."""
    number = int.from_bytes(secret, "little") & ~7 & (2**255 - 1) | 2**254
    x2, z2, x3, z3 = 1, 0, BASE_POINT, 1
    swapped = 0
    for bit in reversed(range(255)):
        is_set = number >> bit & 1
        if swapped != is_set:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swapped = is_set
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % PRIME, BASE_POINT * (da - cb) ** 2 % PRIME
        aa, bb = a * a, b * b
        e = aa - bb
        x2, z2 = aa * bb % PRIME, e * (aa + A24 * e) % PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def z85(key: bytes) -> str:
    return base64.b85encode(key).decode("ascii").translate(_AS_Z85)


def peer_keys(process: str, publics: Mapping[str, str]) -> dict[str, Any]:
    """Return what a process has to know of the keys of others: a pserver those that it accepts, and a trainer those of
    the pservers by rank.
    """
    if process.startswith("pserver"):
        trainers = {int(other[7:]): public for other, public in publics.items() if other.startswith("trainer")}
        return {"allow": {public: f"trainer-{rank}" for rank, public in trainers.items()}}
    servers = {int(other[7:]): public for other, public in publics.items() if other.startswith("pserver")}
    return {"servers": [servers[rank] for rank in sorted(servers)]}
