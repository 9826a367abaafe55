"""A cache of lists of ids, so that a list that a lane has is not sent again.

Both sides identify a list by its digest. The lane keeps the newest lists of each trainer up to a bound. It requests an
evicted list by an error, which the trainer answers with the list in full.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from clusterctl.runtime.arrays import Ids
from clusterctl.runtime.errors import ForgottenError

BYTES_PER_TRAINER = 64 * 2**20

_Key = tuple[int, bytes]


def digest_of(ids: Ids) -> bytes:
    return hashlib.blake2b(ids.data, digest_size=16).digest()


class KeyCache:
    """The newest lists of each trainer, at most `BYTES_PER_TRAINER` per trainer; stores nothing unless `enabled`."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._lists: dict[int, OrderedDict[_Key, Ids]] = {}
        self._bytes: dict[int, int] = {}

    def remember(self, rank: int, table: int, ids: Ids) -> None:
        if not self._enabled or ids.nbytes > BYTES_PER_TRAINER:
            return
        lists = self._lists.setdefault(rank, OrderedDict())
        key = (table, digest_of(ids))
        if key in lists:
            lists.move_to_end(key)
            return
        lists[key] = ids.copy()
        self._bytes[rank] = self._bytes.get(rank, 0) + ids.nbytes
        while self._bytes[rank] > BYTES_PER_TRAINER:
            _, dropped = lists.popitem(last=False)
            self._bytes[rank] -= dropped.nbytes

    def recall(self, rank: int, table: int, digest: bytes) -> Ids:
        """Return a list. Raises ForgottenError if it is not, or no longer, in the cache."""
        lists = self._lists.get(rank, OrderedDict())
        ids = lists.get((table, digest))
        if ids is None:
            raise ForgottenError("a list of ids is not in the cache")
        lists.move_to_end((table, digest))
        return ids
