"""The cache of lists of ids keeps the newest lists of each trainer, up to its bound."""

from __future__ import annotations

import numpy as np
import pytest

from clusterctl.runtime.errors import ForgottenError
from clusterctl.runtime.wire import key_cache
from clusterctl.runtime.wire.key_cache import KeyCache, digest_of

LISTS = [np.arange(4) + 10 * n for n in range(4)]


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_cache, "BYTES_PER_TRAINER", 2 * LISTS[0].nbytes)


def has(cache: KeyCache, n: int, rank: int = 0, table: int = 0) -> bool:
    try:
        return bool((cache.recall(rank, table, digest_of(LISTS[n])) == LISTS[n]).all())
    except ForgottenError:
        return False


def test_the_list_that_was_used_longest_ago_is_evicted() -> None:
    cache = KeyCache(True)
    cache.remember(0, 0, LISTS[0])
    cache.remember(0, 0, LISTS[1])
    assert has(cache, 0), "recalled: now list 1 is the oldest"
    cache.remember(0, 0, LISTS[2])
    assert [has(cache, n) for n in (0, 1, 2)] == [True, False, True]
    cache.remember(0, 0, LISTS[0])
    cache.remember(0, 0, LISTS[3])
    assert [has(cache, n) for n in (0, 2, 3)] == [True, False, True]


def test_each_trainer_has_a_bound_of_its_own_and_lists_belong_to_a_table() -> None:
    cache = KeyCache(True)
    for n in (0, 1):
        cache.remember(0, 0, LISTS[n])
        cache.remember(1, 7, LISTS[n + 2])
    assert [has(cache, n) for n in range(4)] == [True, True, False, False]
    assert [has(cache, n, rank=1, table=7) for n in range(4)] == [False, False, True, True]
    assert not has(cache, 0, table=7)


def test_a_list_larger_than_the_bound_and_lists_of_a_disabled_cache_are_not_kept() -> None:
    cache, whole = KeyCache(True), np.arange(9)
    cache.remember(0, 0, LISTS[0])
    cache.remember(0, 0, whole)
    with pytest.raises(ForgottenError):
        cache.recall(0, 0, digest_of(whole))
    assert has(cache, 0)
    off = KeyCache(False)
    off.remember(0, 0, LISTS[0])
    assert not has(off, 0)
