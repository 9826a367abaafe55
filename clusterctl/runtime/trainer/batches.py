"""Passes over the data: the batches of this trainer, read ahead, and the end of a pass."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from clusterctl.runtime.errors import UseError

Reader = Callable[[int, np.random.Generator], Iterable[Any]]

_SHARED = 2**32 - 1


@dataclass
class StepContext:
    """The batch that the training program works on; one push ends it. `ahead` are the batches read after it.

    `sharded` means that every trainer reads all batches and takes its share.
    """

    pass_: int
    batch: int
    last: bool
    ahead: list[Any] = field(default_factory=list)
    sharded: bool = False
    pushed: bool = False


def pass_rng(seed: int, rank: int, pass_: int, shard: bool) -> np.random.Generator:
    """Return the reader's generator: Philox, counter-based, keyed by (seed, rank, pass), or (seed, pass) if `shard`."""
    packed = struct.pack("<QII", seed & (2**64 - 1), _SHARED if shard else rank, pass_)
    key = int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def own_batches(reader: Reader, pass_: int, rng: np.random.Generator, every: int, offset: int) -> Iterator[Any]:
    """Yield every `every`-th batch of `reader` in this pass, from `offset`."""
    batches = reader(pass_, rng)
    if not isinstance(batches, Iterable):
        raise UseError(
            f"reader({pass_}, rng) returned {type(batches).__name__}",
            remedy="yield batches, or return an iterable",
        )
    return (batch for number, batch in enumerate(batches) if number % every == offset)


def read_ahead(batches: Iterator[Any], skip: int, ahead: int) -> Iterator[tuple[int, Any, list[Any]]]:
    """Yield `(number, batch, next batches)`, reading `ahead` (at least 1) batches ahead; the first `skip` are skipped.

    A batch without next batches is the last one.
    """
    numbered = enumerate(batches)
    window: deque[tuple[int, Any]] = deque(itertools.islice(numbered, ahead))
    while window:
        window.extend(itertools.islice(numbered, 1))
        number, batch = window.popleft()
        if number >= skip:
            yield number, batch, [following for _, following in window]


def whole_number(name: str, number: Any, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise UseError(f"{name}={number!r} is not an integer >= {least}")
    return int(number)


def checked_samples(samples: Any, rank: int, step: int) -> int:
    if isinstance(samples, (bool, np.bool_)) or not isinstance(samples, (int, np.integer)) or samples < 0:
        raise UseError(
            f"trainer {rank}, step {step}: samples={samples!r} is not an integer >= 0",
            remedy="pass the number of examples in the batch",
        )
    return int(samples)


def checked_loss(loss: Any) -> float | None:
    try:
        return None if loss is None else float(loss)
    except (TypeError, ValueError) as exc:
        raise UseError(f"loss={loss!r} is not a number") from exc
